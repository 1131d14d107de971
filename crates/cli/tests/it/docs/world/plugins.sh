# Blocks: inspect, check a snapshotter, check a store; then the plugin: its folder, its source, its check, in
# a server, its image, in a cluster.

begin() {
  ln -s "$AWS_PLUGIN" velero-plugin-for-aws
  ln -s "$SNAPSHOTTER" snapshotter
  mkdir -p scratch/volumes/vol
  cp "$S3_CREDENTIALS" scratch-credentials
  mkdir "$BUCKETS/scratch"
  ln -s "$ROOT" bowline
}

# As tests are built, in the same versions, and beside them, so that little has to be built.
before_5() {
  cp "$ROOT/Cargo.lock" greeter/
  ln -s "$TARGET" greeter/target
  mkdir -p .cargo
  sed -n '/^\[profile.dev\]/,/^$/p; /^\[profile.dev.package."\*"\]/,/^$/p' "$ROOT/Cargo.toml" >.cargo/config.toml
}

before_7() {
  shop
}

before_9() {
  bowline install --image registry.example.com/bowline:v0.1.0 --no-secret --no-default-backup-location
}

# What was built from sources below this home is of no use to anybody else.
end() {
  local note name
  for note in $(grep -lF "$HOME/" "$TARGET"/debug/deps/*.d); do
    name=$(basename "$note" .d)
    rm -rf "$note" "$TARGET/debug/deps/$name" "$TARGET/debug/deps/lib$name".r*
    rm -rf "$TARGET"/debug/.fingerprint/*-"${name##*-}"
  done
}
