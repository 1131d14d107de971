//go:build tools

// Package tools pins the programs that the test bed builds.
package tools

import _ "github.com/kopia/kopia"
