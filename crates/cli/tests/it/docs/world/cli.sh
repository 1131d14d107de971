# Blocks: settings, the bundle, completion in bash and in other shells, kubectl, manual pages.

before_2() {
  # The settings of the first block are those of another installation.
  rm ~/.config/velero/config.json
  shop
  serve_location
  bowline backup create nightly-20260115023000 --include-namespaces shop --wait
}
