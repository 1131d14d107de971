# Blocks: what would happen, make one, how volumes go.

begin() {
  shop
  serve_location
  bowline backup create before-upgrade --include-namespaces shop --wait
  kubectl -n shop patch configmap settings -p '{"data":{"color":"red"}}'
  kubectl -n shop delete secret password
}

before_2() {
  kubectl delete namespace shop
}

before_3() {
  kubectl apply -f - <<'YAML'
apiVersion: velero.io/v1
kind: VolumePluginRestore
metadata:
  name: before-upgrade-20260102030405-pv-0c1
  namespace: velero
  labels: {velero.io/restore-name: before-upgrade-20260102030405}
spec:
  backup: before-upgrade
  restore: before-upgrade-20260102030405
  plugin: example.io/disks
  snapshotID: snap-0a1c
status:
  phase: InProgress
  startTimestamp: "2026-01-02T03:04:05Z"
  progress: {bytesDone: 1073741824, totalBytes: 4294967296}
YAML
}
