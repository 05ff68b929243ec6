// The load of `python -m bench grpc`: workers that call one gRPC server of RocketMQ 5's API as fast as it answers.
//
//	grpc_load ADDRESS CONNECTIONS WORKERS SECONDS send
//	grpc_load ADDRESS CONNECTIONS WORKERS SECONDS receive MESSAGES
//
// Requests come as bytes on standard input, one a line in hexadecimal, so nothing is encoded here but acknowledgements:
//
//	settings   a TelemetryCommand, sent on a stream of each connection before anything else
//	request    a SendMessageRequest, or a ReceiveMessageRequest
//	prefix     an AckMessageRequest without entries (receive only)
//
// `send` sends one message after the other. `receive` receives a batch and acknowledges each message of it by a call of
// its own, until the time is over or MESSAGES were received. Every answer's own status is looked at: gRPC's says OK
// whatever happened. The figures are one JSON object; there are none if a call failed.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	service    = "/apache.rocketmq.v2.MessagingService/"
	statusOK   = 20000
	notFound   = 40401
	callLimit  = 30 * time.Second
	frameBytes = 64 << 20
)

// Numbers of fields, from v2.proto.
const (
	answerStatus, statusCode                = 1, 1
	receivedMessage, messageSystem          = 2, 3
	systemMessageID, systemReceiptHandle    = 3, 12
	ackEntries, entryMessageID, entryHandle = 3, 1, 2
)

// raw passes messages as the bytes they are.
type raw struct{}

func (raw) Marshal(value any) ([]byte, error) { return value.([]byte), nil }
func (raw) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (raw) Name() string { return "proto" }

type load struct {
	settings, request, prefix []byte
	limit                     int64 // messages to receive
	received, acked, sent     atomic.Int64
	until                     time.Time
}

// times are those of one worker, by kind of call.
type times map[string][]time.Duration

func main() {
	connections, workers := number(2), number(3)
	seconds, err := strconv.ParseFloat(os.Args[4], 64)
	check(err)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, frameBytes)
	one := &load{settings: line(lines), request: line(lines)}
	work := one.send
	if os.Args[5] == "receive" {
		one.prefix, one.limit, work = line(lines), int64(number(6)), one.receive
	}
	clients := make([]*grpc.ClientConn, connections)
	for at := range clients {
		clients[at] = connect(os.Args[1], at, one.settings)
	}
	began := time.Now()
	one.until = began.Add(time.Duration(seconds * float64(time.Second)))
	all := make([]times, workers)
	var group sync.WaitGroup
	for at := range all {
		all[at] = times{}
		group.Add(1)
		go func() {
			defer group.Done()
			work(clients[at%connections], of(at%connections), all[at])
		}()
	}
	group.Wait()
	report(one, time.Since(began), all)
}

// connect opens a connection and its Telemetry stream, and waits for the answer to the settings.
func connect(address string, at int, settings []byte) *grpc.ClientConn {
	client, err := grpc.NewClient(
		address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(frameBytes)),
	)
	check(err)
	stream, err := client.NewStream(of(at), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, service+"Telemetry")
	check(err)
	check(stream.SendMsg(settings))
	var answer []byte
	check(stream.RecvMsg(&answer))
	return client
}

// of is the context of a connection's calls: its client's id.
func of(at int) context.Context {
	id := fmt.Sprintf("load-%d-%d", os.Getpid(), at)
	return metadata.AppendToOutgoingContext(
		context.Background(),
		"x-mq-client-id", id, "x-mq-language", "GO", "x-mq-client-version", "5.1.3", "x-mq-protocol", "v2",
	)
}

func (l *load) send(client *grpc.ClientConn, ctx context.Context, spent times) {
	for time.Now().Before(l.until) {
		answer := call(client, ctx, "SendMessage", l.request, spent)
		if code := codeOf(answer); code != statusOK {
			fail("SendMessage was answered with status %d", code)
		}
		l.sent.Add(1)
	}
}

func (l *load) receive(client *grpc.ClientConn, ctx context.Context, spent times) {
	for time.Now().Before(l.until) && l.received.Load() < l.limit {
		began := time.Now()
		found := l.batch(client, ctx)
		spent["receive"] = append(spent["receive"], time.Since(began))
		l.received.Add(int64(len(found)))
		for _, entry := range found {
			request := protowire.AppendTag(append([]byte(nil), l.prefix...), ackEntries, protowire.BytesType)
			if code := codeOf(call(client, ctx, "AckMessage", protowire.AppendBytes(request, entry), spent)); code != statusOK {
				fail("AckMessage was answered with status %d", code)
			}
			l.acked.Add(1)
		}
	}
}

// batch receives messages; of each the entry of an AckMessageRequest.
func (l *load) batch(client *grpc.ClientConn, ctx context.Context) [][]byte {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	stream, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, service+"ReceiveMessage")
	check(err)
	check(stream.SendMsg(l.request))
	check(stream.CloseSend())
	var found [][]byte
	for {
		var part []byte
		if err := stream.RecvMsg(&part); err == io.EOF {
			return found
		} else {
			check(err)
		}
		if status, has := field(part, answerStatus); has {
			if code := number64(status, statusCode); code != statusOK && code != notFound {
				fail("ReceiveMessage was answered with status %d", code)
			}
		} else if message, has := field(part, receivedMessage); has {
			system, _ := field(message, messageSystem)
			id, _ := field(system, systemMessageID)
			handle, _ := field(system, systemReceiptHandle)
			entry := protowire.AppendBytes(protowire.AppendTag(nil, entryMessageID, protowire.BytesType), id)
			found = append(found, protowire.AppendBytes(protowire.AppendTag(entry, entryHandle, protowire.BytesType), handle))
		}
	}
}

func call(client *grpc.ClientConn, ctx context.Context, name string, request []byte, spent times) []byte {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var answer []byte
	began := time.Now()
	check(client.Invoke(ctx, service+name, request, &answer))
	spent[name] = append(spent[name], time.Since(began))
	return answer
}

func codeOf(answer []byte) uint64 {
	status, _ := field(answer, answerStatus)
	return number64(status, statusCode)
}

// field is the content of the first field of that number that has bytes.
func field(data []byte, wanted protowire.Number) ([]byte, bool) {
	for len(data) > 0 {
		number, kind, size := protowire.ConsumeTag(data)
		check(protowire.ParseError(min(size, 0)))
		data = data[size:]
		if number == wanted && kind == protowire.BytesType {
			content, size := protowire.ConsumeBytes(data)
			check(protowire.ParseError(min(size, 0)))
			return content, true
		}
		size = protowire.ConsumeFieldValue(number, kind, data)
		check(protowire.ParseError(min(size, 0)))
		data = data[size:]
	}
	return nil, false
}

// number64 is the first field of that number that is a number; 0 without, as protobuf has it.
func number64(data []byte, wanted protowire.Number) uint64 {
	for len(data) > 0 {
		number, kind, size := protowire.ConsumeTag(data)
		check(protowire.ParseError(min(size, 0)))
		data = data[size:]
		if number == wanted && kind == protowire.VarintType {
			value, _ := protowire.ConsumeVarint(data)
			return value
		}
		size = protowire.ConsumeFieldValue(number, kind, data)
		check(protowire.ParseError(min(size, 0)))
		data = data[size:]
	}
	return 0
}

func report(l *load, took time.Duration, all []times) {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	figures := map[string]float64{
		"seconds":         took.Seconds(),
		"sent":            float64(l.sent.Load()),
		"acked":           float64(l.acked.Load()),
		"generator_cpu_s": float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9,
	}
	joined := times{}
	for _, spent := range all {
		for name, some := range spent {
			joined[name] = append(joined[name], some...)
		}
	}
	for name, some := range joined {
		sort.Slice(some, func(a, b int) bool { return some[a] < some[b] })
		figures[name+" calls"] = float64(len(some))
		figures[name+" p50 ms"] = some[len(some)/2].Seconds() * 1000
		figures[name+" p99 ms"] = some[len(some)*99/100].Seconds() * 1000
	}
	check(json.NewEncoder(os.Stdout).Encode(figures))
}

func line(lines *bufio.Scanner) []byte {
	if !lines.Scan() {
		fail("a request is missing on standard input")
	}
	data, err := hex.DecodeString(lines.Text())
	check(err)
	return data
}

func number(argument int) int {
	value, err := strconv.Atoi(os.Args[argument])
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(1)
}
