"""Spark imports modules whose names begin with `pyspark_` in the process in which it looks for data sources, and
closes that process's socket without waiting (contrailmq.spark.runtime.worker_daemon). There is no DefaultSource here,
so nothing is registered."""

from contrailmq.spark.runtime.worker_daemon import end_quietly

end_quietly()
