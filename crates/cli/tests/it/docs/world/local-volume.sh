begin() {
  ln -s "$LOCAL_VOLUME" bowline-plugin-local-volume
}
