"""RocketMQ's keys that this broker knows and does not go by, and what a start says of them.

Two kinds. PROMISES are keys whose silence would mislead about safety or data: the broker refuses to start with them
(`wire/promises.py`). All others, here and in the store's own table, change nothing that a user could rely on: a start
names those that are set in one line, and docs/settings.md lists them all (a test compares).

The names are those of RocketMQ 5.5's BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig and
AuthConfig, and some that only 4.x has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from contrailmq.store import WITHOUT_EFFECT as OF_STORE
from contrailmq.wire.promises import Promise, is_not_off

_NO_CONTROLLER: Final = "no controller elects a master yet"
_NO_ACCESS_CONTROL: Final = "access control is not built yet: every client may do everything"
_NO_ROCKSDB: Final = "RocksDB is not used: its data is not read"

PROMISES: Final = (
    Promise("aclEnable", is_not_off, _NO_ACCESS_CONTROL),
    Promise("authenticationEnabled", is_not_off, _NO_ACCESS_CONTROL),
    Promise("authorizationEnabled", is_not_off, _NO_ACCESS_CONTROL),
    Promise("rejectPullConsumerEnable", is_not_off, "pull consumers are served like others"),
    Promise("allAckInSyncStateSet", is_not_off, _NO_CONTROLLER),
    Promise("duplicationEnable", is_not_off, "the log is replicated to slaves alone"),
    Promise("enableDLegerCommitLog", is_not_off, "the log is replicated to slaves, and not by Raft"),
    Promise("enableControllerMode", is_not_off, _NO_CONTROLLER),
    Promise("configManagerVersion", lambda text: text.lower() not in ("", "v1"), _NO_ROCKSDB),
    Promise("timerRocksDBEnable", is_not_off, _NO_ROCKSDB),
    Promise("transRocksDBEnable", is_not_off, _NO_ROCKSDB),
    Promise("popConsumerKVServiceEnable", is_not_off, _NO_ROCKSDB),
    Promise("messageStorePlugIn", bool, "store plug-ins, such as tiered storage, are not loaded"),
)

# why -> keys
_BY_REASON: Final[Mapping[str, str]] = {
    "threads and queues: the broker is one loop": """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity
        asyncSendEnable brokerFastFailureEnable clientCallbackExecutorThreads clientManagerThreadPoolQueueCapacity
        clientManageThreadPoolNums clientWorkerThreads compactionThreadNum consumerManagerThreadPoolQueueCapacity
        consumerManageThreadPoolNums disableCallbackExecutor dispatchCqCacheNum dispatchCqThreads
        dispatchFromSenderThread enableAsyncReput enableFastChannelEventProcess endTransactionPoolQueueCapacity
        endTransactionThreadPoolNums heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity
        litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums
        loadBalanceThreadPoolQueueCapacity processReplyMessageThreadPoolNums pullMessageThreadPoolNums
        pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
        queryThreadPoolQueueCapacity recoverConcurrently recoverThreadPoolNums replyThreadPoolQueueCapacity
        sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverCallbackExecutorThreads serverSelectorThreads
        serverWorkerThreads waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    """,
    "buffers and event loops of Java's transport": """
        channelNotActiveInterval clientAsyncSemaphoreValue clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
        clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
        connectTimeoutMillis disableNettyWorkerGroup enableReconnectForGoAway enableShutdownGracefully highSpeedMode
        isScanAvailableNameSrv maxReconnectIntervalTimeSeconds serverAsyncSemaphoreValue serverNettyWorkerGroupEnable
        serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSocketBacklog serverSocketRcvBufSize
        serverSocketSndBufSize shutdownWaitTimeSeconds socksProxyConfig transferMsgByHeap useEpollNativeSelector
        writeBufferHighWaterMark writeBufferLowWaterMark
    """,
    "POP has no revive threads, no buffer and no scans here": """
        appendAckAsync appendCkAsync enableCreateSysGroup enableNotifyAfterPopOrderLockRelease
        enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMetrics
        enableSkipLongAwaitingAck popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
         popConsumerKVServiceInit popConsumerKVServiceLog
        popLongPollingForceNotifyInterval popOrderLockTimerTickMs popOrderLockTimerTicksPerWheel
        popPollingMapExpireTimeSeconds popPollingMapSize popReviveConcurrency popReviveMaxAttemptTimes
        popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent reviveAckWaitMs reviveInterval reviveMaxSlow
        reviveScanTime skipWhenCKRePutReachMaxTimes
    """,
    "clients of lite topics are told of messages in another way, and there are no metrics of lite topics": """
        enableLiteEventMode enableLitePopLog liteEventCapacityCacheTtlMs liteEventCheckInterval
        liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup liteLagCountMetricsEnable
        liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK maxClientEventCount
    """,
    "access control is not built yet": """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath authenticationMetadataProvider
        authenticationProvider authenticationStrategy authenticationWhitelist authorizationMetadataProvider
        authorizationProvider authorizationStrategy authorizationWhitelist initAuthenticationUser
        innerClientAuthenticationCredentials migrateAuthFromV1Enabled statefulAuthenticationCacheExpiredSecond
        statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
        userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    """,
    "statistics of RocketMQ's own, printed to its logs, and the exporter LOG": """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats commercialBaseCount commercialBigCount
        commercialEnable commercialSizePerMsg commercialTimerCount commercialTransCount enableDetailStat
        enableLmqStats enableScheduleMessageStats estimateAccumulation isolateLogEnable maxStatsIdleTimeInMinutes
        metricLoggingExporterIntervalInMills printChannelGroups printChannelGroupsMinNum sampleSteps
    """,
    "no controller, no replicated log, no containers yet": """
        brokerElectionPriority checkSyncStateSetPeriod
        cleanOfflineBrokerInterval controllerAddr controllerHeartBeatTimeoutMills dLegerGroup
        dLegerPeers dLegerSelfId enableBatchPush fetchControllerAddrByDnsLookup forwardTimeout
        isBrokerContainer isInBrokerContainer loadBalancePollNameServerInterval lockInStrictMode maxChecksumRange
        preferredLeaderId syncBrokerMetadataPeriod
        syncControllerMetadataPeriod
    """,
    "signs of life are BROKER_HEARTBEAT, which NameServers with acting masters know, and nobody waits for them": """
        compatibleWithOldNameSrv sendHeartbeatTimeoutMillis
    """,
    "RocksDB is not used": """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin combineAssignOffsetCQType
        combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
        enableRocksDBLog indexRocksDBEnable memTableFlushIntervalMs persistConsumerOffsetIncrementally
        realTimePersistRocksDBConfig rocksdbCompressionType rocksdbCQDoubleWriteEnable rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold statRocksDBCQIntervalSec timerRocksDBStopScan useSingleRocksDBForAllConfigs
    """,
    "compaction topics and store plug-ins are not supported": """
        compactionScheduleInternal maxOffsetMapSize
    """,
    "cold reads always go to a bounded worker": """
        cgColdReadThreshold coldCtrStrategyEnable globalColdReadThreshold timerColdDataCheckIntervalMs
        usePIDColdCtrStrategy
    """,
    "mappings are cheap here and are not swapped": """
        cleanSwapedMapInterval commitLogForceSwapMapInterval commitLogSwapMapReserveFileNum
        logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    """,
    "registration always sends the whole table, to the NameServers of namesrvAddr": """
        compressedRegister enableRegisterProducer enableSingleTopicRegister enableSplitMetadata enableSplitRegistration
        fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval forceRegister
        splitMetadataSize splitRegistrationSize updateNameServerAddrPeriod
    """,
    "filters are compiled, and need no bit maps": """
        enableCalcFilterBitMap expectConsumerNumUseFilter filterDataCleanTimeSpan filterServerNums filterSupportRetry
        maxErrorRateOfBloomFilter
    """,
    "what they choose is fixed here, or always on": """
        allowRecallWhenBrokerNotWriteable broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerConfigPath
        clusterName configName consumerFallbehindThreshold
        consumerOffsetUpdateVersionStep correctLogicMinOffsetSleepInterval delayOffsetUpdateVersionStep
        disableConsumeIfConsumerReadSlowly enableBroadcastOffsetStore enableCleanExpiredOffset
        enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMixedMessageType enableNetWorkFlowControl
        flushConsumerOffsetHistoryInterval maxBatchDeleteFilesNum maxTopicLength realTimeNotifyConsumerChange
        rocketmqHome searchBcqByCacheEnable subscriptionExpiredTimeout timerEnableDisruptor timerInterceptDelayLevel
        timerMetricSmallThreshold timerProgressLogIntervalMs transactionMetricFlushInterval useStaticSubscription
        validateSystemTopicWhenUpdateTopic
    """,
}
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    key: reason for reason, names in _BY_REASON.items() for key in names.split()
} | {key: reason for key, reason in OF_STORE.items() if key not in {promise.key for promise in PROMISES}}


def why_without_effect(key: str) -> str:
    """Why a key of RocketMQ's has no effect here, "" for a key that is not known to have none."""
    missing = {promise.key: promise.missing for promise in PROMISES}
    return missing.get(key) or WITHOUT_EFFECT.get(key, "")


def named_in_one_line(keys: Iterable[str]) -> str:
    """The warning about keys without effect, "" when there are none of them."""
    unused = sorted(key for key in keys if key in WITHOUT_EFFECT)
    return f"settings of RocketMQ's without effect here: {', '.join(unused)}" if unused else ""
