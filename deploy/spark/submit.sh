#!/bin/sh
# Archive topics by spark-submit, on YARN, on Kubernetes, or on any other master.
#
#     MASTER=yarn ENVIRONMENT=env.tar.gz deploy/spark/submit.sh 10.0.0.5:9876 Orders,Payments /shared/archive
#     MASTER=k8s://https://host:6443 IMAGE=spark-with-python:1 CLAIM=archive deploy/spark/submit.sh ...
#
# YARN gets Python and its packages from ENVIRONMENT, a packed environment (conda-pack, venv-pack). On Kubernetes IMAGE has
# Spark, Python 3.11 or newer with `contrailmq[spark]`, and this directory as /opt/contrailmq; the claim CLAIM is mounted at
# /archive in driver and executors. contrailmq itself is packed and sent along where the image does not have it.
set -eu
usage="usage: MASTER=... submit.sh NAMESRV TOPICS ARCHIVE"
: "${MASTER:?$usage}"
[ $# -eq 3 ] || { echo "$usage" >&2; exit 2; }
here=$(dirname "$0")
job=$here/archive_topics.py
namesrv=$1 topics=$2 archive=$3
set -- --master "$MASTER" --name "archive $topics"
case $MASTER in
  k8s://*)
    volume=spark.kubernetes.driver.volumes.persistentVolumeClaim.archive
    executor=spark.kubernetes.executor.volumes.persistentVolumeClaim.archive
    job=local:///opt/contrailmq/archive_topics.py
    set -- "$@" --deploy-mode cluster \
      --conf spark.kubernetes.container.image="${IMAGE:?the image of driver and executors}" \
      --conf spark.kubernetes.namespace="${NAMESPACE:-default}" \
      --conf spark.kubernetes.authenticate.driver.serviceAccountName="${ACCOUNT:-spark}" \
      --conf spark.kubernetes.driver.podTemplateFile="$here/pod.yaml" \
      --conf spark.kubernetes.executor.podTemplateFile="$here/pod.yaml" \
      --conf "$volume.mount.path=/archive" --conf "$volume.options.claimName=${CLAIM:?the claim of the archive}" \
      --conf "$executor.mount.path=/archive" --conf "$executor.options.claimName=$CLAIM"
    ;;
  yarn)
    set -- "$@" --deploy-mode cluster --archives "${ENVIRONMENT:?the packed Python environment}#env" \
      --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON=./env/bin/python \
      --conf spark.executorEnv.PYSPARK_PYTHON=./env/bin/python
    ;;
esac
if [ -n "${PACKAGE:-}" ]; then set -- "$@" --py-files "$PACKAGE"; fi # contrailmq pipeline package contrailmq.zip
exec "${SPARK_SUBMIT:-spark-submit}" "$@" "$job" "$namesrv" "$topics" "$archive"
