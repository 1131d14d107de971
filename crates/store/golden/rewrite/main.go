// Decodes inputs of the fuzz target `bucket-files` with Velero's own types, and writes what Velero makes of those that
// it accepts, for the Rust tests of fuzz/ to compare themselves with.
// Run it as `go run ./rewrite ../../../fuzz/corpus/bucket-files ../../../fuzz/tests/velero/bucket-files.json`.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"log"
	"os"
	"path/filepath"

	v1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/itemoperation"
	"github.com/vmware-tanzu/velero/pkg/util/results"
)

// kinds has a value of the type of each file, by the number that the target gives it. The types of the others lie in
// packages that only Velero may import.
var kinds = map[byte]func() any{
	0: func() any { return &[]*itemoperation.BackupOperation{} },
	1: func() any { return &[]*itemoperation.RestoreOperation{} },
	5: func() any { return &map[string][]string{} },
	6: func() any { return &map[string]results.Result{} },
	7: func() any { return &[]*v1.PodVolumeBackup{} },
}

const (
	kindCount = 13
	isPacked  = 0x80
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: rewrite <corpus> <output file>")
	}
	files, err := os.ReadDir(os.Args[1])
	check(err)
	accepted := map[string]string{}
	for _, file := range files {
		input, err := os.ReadFile(filepath.Join(os.Args[1], file.Name()))
		check(err)
		if text, is := rewrite(input); is {
			accepted[file.Name()] = text
		}
	}
	text, err := json.MarshalIndent(accepted, "", " ")
	check(err)
	check(os.WriteFile(os.Args[2], append(text, '\n'), 0o644))
}

// rewrite decodes a file and encodes it again, both as Velero does (pkg/persistence/object_store.go).
func rewrite(input []byte) (string, bool) {
	if len(input) == 0 {
		return "", false
	}
	make, known := kinds[(input[0]&^isPacked)%kindCount]
	if !known {
		return "", false
	}
	packed := input[1:]
	if input[0]&isPacked == 0 {
		packed = pack(packed)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", false
	}
	value := make()
	if json.NewDecoder(unpacked).Decode(value) != nil {
		return "", false
	}
	if found, is := value.(*map[string]results.Result); is {
		// Velero writes and shows exactly these two.
		*found = map[string]results.Result{"errors": (*found)["errors"], "warnings": (*found)["warnings"]}
	}
	var text bytes.Buffer
	check(json.NewEncoder(&text).Encode(value))
	return text.String(), true
}

func pack(text []byte) []byte {
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err := writer.Write(text)
	check(err)
	check(writer.Close())
	return packed.Bytes()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
