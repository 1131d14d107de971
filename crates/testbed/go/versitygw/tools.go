//go:build tools

// Package tools pins the program that the test bed builds from this module.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
