// Writes what Velero's own types say, byte for byte as Velero writes it into a bucket (before it is
// compressed), for the Rust tests of crates/store to compare themselves with.
// Run it as `go run . ../tests/golden`.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"time"

	v1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/itemoperation"
	"github.com/vmware-tanzu/velero/pkg/persistence"
	"github.com/vmware-tanzu/velero/pkg/restore"
	"github.com/vmware-tanzu/velero/pkg/util/encode"
	"github.com/vmware-tanzu/velero/pkg/util/results"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Some types lie in packages that only Velero may import, but functions that all may see return them.
func returned(owner reflect.Type, method string) reflect.Type {
	function, found := owner.MethodByName(method)
	if !found {
		log.Fatalf("%s has no %s", owner, method)
	}
	return function.Type.Out(0)
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: golden <output directory>")
	}
	out := os.Args[1]
	store := reflect.TypeFor[persistence.BackupStore]()
	tracker, _ := reflect.TypeFor[restore.Request]().FieldByName("RestoreVolumeInfoTracker")
	for name, kind := range map[string]reflect.Type{
		"backup-operations":    reflect.TypeFor[[]*itemoperation.BackupOperation](),
		"restore-operations":   reflect.TypeFor[[]*itemoperation.RestoreOperation](),
		"backup-volume-infos":  returned(store, "GetBackupVolumeInfos"),
		"restore-volume-infos": returned(tracker.Type, "Result"),
		"volume-snapshots":     returned(store, "GetBackupVolumeSnapshots"),
		"resource-list":        reflect.TypeFor[map[string][]string](),
		"results":              reflect.TypeFor[map[string]results.Result](),
	} {
		write(out, name+".json", line(sample(kind, name).Interface()))
	}
	write(out, "velero-backup.json", record())
	write(out, "json.json", line(scalars()))
}

// sample is a list with one full element and one empty one; of a map, the full thing.
func sample(kind reflect.Type, name string) reflect.Value {
	filler := &filler{}
	switch {
	case name == "results":
		full := map[string]results.Result{"errors": {}, "warnings": {}}
		value := reflect.New(reflect.TypeFor[results.Result]()).Elem()
		filler.fill(value)
		full["errors"] = value.Interface().(results.Result)
		return reflect.ValueOf(full)
	case kind.Kind() == reflect.Slice:
		list := reflect.MakeSlice(kind, 2, 2)
		filler.fill(list.Index(0))
		list.Index(1).Set(reflect.New(kind.Elem().Elem()))
		return list
	default:
		value := reflect.New(kind).Elem()
		filler.fill(value)
		return value
	}
}

func record() []byte {
	backup := &v1.Backup{
		ObjectMeta: metav1.ObjectMeta{
			Name: "golden", Namespace: "velero", UID: "0f5c7a0e-7c8b-4f3a-9a57-1c1f64a1b0de",
			CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
			Annotations:       map[string]string{"note": "a < b && c > d \u2028", "empty": ""},
		},
		Spec:   v1.BackupSpec{IncludedNamespaces: []string{"*"}, TTL: metav1.Duration{Duration: time.Hour}},
		Status: v1.BackupStatus{Phase: v1.BackupPhaseCompleted, Version: 1, FormatVersion: "1.1.0"},
	}
	text, err := encode.Encode(backup, "json")
	check(err)
	return text
}

type scalar struct {
	Value any    `json:"value"`
	Text  string `json:"text"`
}

// scalars pairs values with what Go makes of them.
func scalars() []scalar {
	var every []byte
	for b := range byte(0x80) {
		every = append(every, b)
	}
	var pairs []scalar
	for _, value := range []any{
		string(every), "<>&\u2028\u2029é\U0001F600\u00a0\ufeff", "", true, nil, 0, -1, math.MaxInt64,
		0.5, 1.0, -0.0, 100.0, 1e20, 1e21, 1.5e300, 1e-6, 1e-7, 1.234e-9, -2.5e-10, 123456789.125,
		[]int{}, map[string]int{}, map[string]any{"b": 1, "a": []any{1, "x"}, "Z": nil, "é": 1},
	} {
		text, err := json.Marshal(value)
		check(err)
		pairs = append(pairs, scalar{value, string(text)})
	}
	return pairs
}

func line(value any) []byte {
	var buffer bytes.Buffer
	check(json.NewEncoder(&buffer).Encode(value))
	return buffer.Bytes()
}

func write(dir, name string, content []byte) {
	check(os.WriteFile(filepath.Join(dir, name), content, 0o644))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
