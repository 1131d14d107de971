begin() {
  POD_NAME=bowline-7d4b9c6f5d-x2x8p serve
}
