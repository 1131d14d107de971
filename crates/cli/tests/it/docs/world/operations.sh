# Blocks: operations, cancel, wait for a run.

begin() {
  mkdir -p plugins
  ln -s "$FIXTURES" plugins/fixtures
  serve_location
  kubectl create namespace app-shop
  for pod in 'quick operation=1' 'slow operation=3600000'; do
    kubectl apply -f - <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: ${pod% *}
  namespace: app-shop
  annotations: {fixture.bowline.io/do: "${pod#* }"}
spec:
  nodeName: kwok-0
  containers: [{name: main, image: main}]
YAML
  done
  bowline backup create quick --include-namespaces app-shop --selector none=none --wait
  bowline backup create nightly-20260115023000 --include-namespaces app-shop
  kubectl -n velero wait backup/nightly-20260115023000 --for=jsonpath='{.status.phase}'=WaitingForPluginOperations \
    --timeout=2m
}

before_2() {
  bowline restore create nightly-20260115023000-20260115080000 --from-backup quick
}

before_3() {
  kubectl -n velero wait backup/nightly-20260115023000 --for=jsonpath='{.status.phase}'=Failed --timeout=2m
  kubectl -n app-shop delete pod slow --wait=false
}
