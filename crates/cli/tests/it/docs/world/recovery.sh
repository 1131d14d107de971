# Blocks: export, check, import, look at the backups and restore one, writable again.

begin() {
  echo "correct horse battery staple" >passphrase
  mkdir "$BUCKETS/backups"
  shop
  kubectl -n velero create secret generic cloud --from-file=credentials="$S3_CREDENTIALS"
  serve
  bowline backup-location create main --provider aws --bucket backups --config region=eu-central-1 \
    --credential cloud=credentials --default
  bowline backup create nightly-20261116140000 --include-namespaces shop --wait
}

# Another cluster: nothing of the old one is there.
before_3() {
  stop_servers
  for one in $(kubectl -n velero get backups -o name); do
    kubectl -n velero patch "$one" --type=merge -p '{"metadata":{"finalizers":null}}'
  done
  kubectl -n velero delete backups,backupstoragelocations,configmaps --all
  kubectl -n velero delete secret cloud
  kubectl -n velero delete lease bowline-server --ignore-not-found
  serve
}
