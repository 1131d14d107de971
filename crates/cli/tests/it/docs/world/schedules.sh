# Blocks: make one, once out of turn, what is kept.

begin() {
  shop
  serve_location
}

before_3() {
  kubectl apply -f - <<'YAML'
apiVersion: velero.io/v1
kind: Backup
metadata:
  name: nightly-20260115013000
  namespace: velero
  labels: {velero.io/gc-failure: BSLReadOnly}
spec: {storageLocation: archive}
status: {phase: Completed}
YAML
}
