// The fixture plugins, built with Velero's own plugin framework.
//
// plugins/fixture/README.md says what they do, to the letter: a Rust implementation behaves alike,
// and one suite runs over both.
package main

import (
	"cmp"
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"github.com/vmware-tanzu/velero/pkg/plugin/framework"
	"github.com/vmware-tanzu/velero/pkg/plugin/framework/common"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
)

// domain is the prefix of all names and annotations. Two sets of these plugins can take part in one
// run if they have different ones.
var domain = cmp.Or(os.Getenv("FIXTURE_DOMAIN"), "fixture.bowline.io") + "/"

// pods is the simple selector; elaborate has a value in every field, so that none can get lost on
// its way to the host unnoticed.
var (
	pods = velero.ResourceSelector{
		IncludedResources: []string{"pods"},
	}
	elaborate = velero.ResourceSelector{
		IncludedNamespaces: []string{"app-*"},
		ExcludedNamespaces: []string{"kube-system"},
		IncludedResources:  []string{"pods", "persistentvolumeclaims"},
		ExcludedResources:  []string{"nodes"},
		LabelSelector:      "fixture!=no",
	}
)

// handler wraps a constructor in the form in which the framework wants it.
func handler[T any](build func(log logrus.FieldLogger) T) common.HandlerInitializer {
	return func(log logrus.FieldLogger) (any, error) { return build(log), nil }
}

func main() {
	framework.NewServer().
		BindFlags(pflag.CommandLine).
		RegisterBackupItemAction(domain+"bia-v1", handler(backupV1("bia-v1", pods))).
		RegisterBackupItemAction(domain+"both", handler(backupV1("both-v1", pods))).
		RegisterBackupItemActionV2(domain+"bia-v2", handler(backupV2("bia-v2", elaborate))).
		RegisterBackupItemActionV2(domain+"both", handler(backupV2("both-v2", pods))).
		RegisterRestoreItemAction(domain+"ria-v1", handler(restoreV1("ria-v1", pods))).
		RegisterRestoreItemActionV2(domain+"ria-v2", handler(restoreV2("ria-v2", elaborate))).
		RegisterDeleteItemAction(domain+"dia", handler(newDeleteAction)).
		RegisterItemBlockAction(domain+"iba", handler(newBlockAction)).
		RegisterVolumeSnapshotter(domain+"vs-v1", handler(newSnapshotter)).
		RegisterObjectStore(domain+"os", handler(newStore)).
		Serve()
}
