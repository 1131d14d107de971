//go:build tools

// Package tools pins the program that the test bed builds from this module.
package tools

import _ "github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner"
