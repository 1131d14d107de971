# Blocks: the demo, the tests, into a cluster, on any machine.

before_3() {
  cp "$S3_CREDENTIALS" credentials
  mkdir "$BUCKETS/backups"
  play_node
}

before_4() {
  stop_servers
  reset
  kubectl delete namespace velero
}
