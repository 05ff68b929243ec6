"""Archive topics, once: for a scheduler that runs it again and again. `submit.sh` beside it starts it.

    spark-submit ... archive_topics.py NAMESRV TOPICS ARCHIVE

The archive is a directory that the driver and all executors see. What a run has archived the next one leaves out.
"""

import sys

import contrailmq.spark
from contrailmq.spark.jobs.archive_topics import archive_topics

if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: archive_topics.py NAMESRV TOPICS ARCHIVE")
    spark = contrailmq.spark.session("archive topics")
    print(archive_topics(spark, *sys.argv[1:]))
    spark.stop()
