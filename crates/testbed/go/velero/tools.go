//go:build tools

// Package tools pins the program that the test bed builds from this module.
package tools

import _ "github.com/vmware-tanzu/velero/cmd/velero"
