# Blocks: each day, why it ended so, its log, an operation, the log of pods, a location, upgrade, help.

begin() {
  shop
  kubectl apply -f - <<'YAML'
apiVersion: v1
kind: Pod
metadata:
  name: db-0
  namespace: shop
  annotations:
    pre.hook.backup.velero.io/command: '["/bin/false"]'
spec:
  nodeName: kwok-0
  containers: [{name: main, image: main}]
YAML
  mkdir -p plugins
  ln -s "$FIXTURES" plugins/fixtures
  kubectl create namespace app-shop
  kubectl apply -f - <<'YAML'
apiVersion: v1
kind: Pod
metadata:
  name: slow
  namespace: app-shop
  annotations: {fixture.bowline.io/do: operation=3600000}
spec:
  nodeName: kwok-0
  containers: [{name: main, image: main}]
YAML
  kubectl -n shop wait pod/db-0 --for=condition=Ready --timeout=2m
  POD_NAME=bowline-7d4b9c6f5d-x2x8p serve_location
  bowline schedule create nightly --schedule '30 2 * * *' --include-namespaces shop
  bowline backup create nightly-20260115023000 --include-namespaces shop --wait || test $? = 1
}

before_4() {
  bowline backup create nightly-20260116023000 --include-namespaces app-shop
  kubectl -n velero wait backup/nightly-20260116023000 --for=jsonpath='{.status.phase}'=WaitingForPluginOperations \
    --timeout=2m
}

before_8() {
  # Its pods run in name only and have no logs to collect.
  kubectl -n velero delete deployment bowline
}
