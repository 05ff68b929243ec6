"""The log as DataFrames: Spark reads topics and a store's files, writes to topics, and runs the jobs around a store.

    import contrailmq.spark
    spark = contrailmq.spark.session()
    spark.read.format("commitlog").load("/data/store").groupBy("topic").count().show()

Reading order: `records.py` and `scan.py` (bytes to record positions), `property_table.py` and `decode.py` (records to
Arrow), `store_files.py` and `log_plan.py` (a store's files to parts), then `commitlog.py`, the data source, and
`environment.py`, which starts Spark. All but the last two work without pyspark.
"""

from contrailmq.spark.columns import OptionError
from contrailmq.spark.environment import SparkEnvironmentError, ensure_java, register, session
from contrailmq.spark.scan import CorruptLogError
from contrailmq.spark.store_files import StoreFilesError

__all__ = [
    "CorruptLogError",
    "OptionError",
    "SparkEnvironmentError",
    "StoreFilesError",
    "ensure_java",
    "register",
    "session",
]
