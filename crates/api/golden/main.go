// Writes what Velero's own types and CRDs say, as JSON that the Rust tests of
// crates/api compare themselves with. Run it as `go run . ../tests/golden`.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	v1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	v2 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
)

// One pointer to an empty object per kind; its group version comes from the package.
var kinds = map[string][]any{
	"velero.io/v1": {
		&v1.Backup{}, &v1.BackupRepository{}, &v1.BackupStorageLocation{}, &v1.DeleteBackupRequest{},
		&v1.DownloadRequest{}, &v1.PodVolumeBackup{}, &v1.PodVolumeRestore{}, &v1.Restore{},
		&v1.Schedule{}, &v1.ServerStatusRequest{}, &v1.VolumeSnapshotLocation{},
	},
	"velero.io/v2alpha1": {&v2.DataDownload{}, &v2.DataUpload{}},
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: golden <output directory>")
	}
	out := os.Args[1]
	for apiVersion, objects := range kinds {
		for _, object := range objects {
			kind := kindOf(object)
			write(out, fmt.Sprintf("velero-%s.zero.json", kind), zero(object, apiVersion))
			write(out, fmt.Sprintf("velero-%s.full.json", kind), full(object, apiVersion))
		}
	}
	write(out, "durations.json", durations())
	write(out, "labels.json", labels())
	write(out, "velero-crds.json", crds())
}

func write(dir, name string, value any) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	check(encoder.Encode(value))
	check(os.WriteFile(filepath.Join(dir, name), buffer.Bytes(), 0o644))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
