package main

import (
	"fmt"
	"reflect"
	"time"

	v1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	v2 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Values for the closed string sets, so that what we write could be a real object.
var enums = map[reflect.Type]string{
	reflect.TypeFor[v1.BackupPhase]():                       string(v1.BackupPhaseFinalizingPartiallyFailed),
	reflect.TypeFor[v1.RestorePhase]():                      string(v1.RestorePhaseWaitingForPluginOperations),
	reflect.TypeFor[v1.SchedulePhase]():                     string(v1.SchedulePhaseEnabled),
	reflect.TypeFor[v1.BackupStorageLocationPhase]():        string(v1.BackupStorageLocationPhaseUnavailable),
	reflect.TypeFor[v1.BackupStorageLocationAccessMode]():   string(v1.BackupStorageLocationAccessModeReadOnly),
	reflect.TypeFor[v1.VolumeSnapshotLocationPhase]():       string(v1.VolumeSnapshotLocationPhaseAvailable),
	reflect.TypeFor[v1.BackupRepositoryPhase]():             string(v1.BackupRepositoryPhaseNotReady),
	reflect.TypeFor[v1.BackupRepositoryMaintenanceResult](): string(v1.BackupRepositoryMaintenanceSucceeded),
	reflect.TypeFor[v1.PodVolumeBackupPhase]():              string(v1.PodVolumeBackupPhaseAccepted),
	reflect.TypeFor[v1.PodVolumeRestorePhase]():             string(v1.PodVolumeRestorePhasePrepared),
	reflect.TypeFor[v1.DeleteBackupRequestPhase]():          string(v1.DeleteBackupRequestPhaseInProgress),
	reflect.TypeFor[v1.DownloadRequestPhase]():              string(v1.DownloadRequestPhaseProcessed),
	reflect.TypeFor[v1.DownloadTargetKind]():                string(v1.DownloadTargetKindRestoreVolumeInfo),
	reflect.TypeFor[v1.ServerStatusRequestPhase]():          string(v1.ServerStatusRequestPhaseNew),
	reflect.TypeFor[v1.HookErrorMode]():                     string(v1.HookErrorModeContinue),
	reflect.TypeFor[v1.PolicyType]():                        string(v1.PolicyTypeUpdate),
	reflect.TypeFor[v2.DataUploadPhase]():                   string(v2.DataUploadPhaseCanceling),
	reflect.TypeFor[v2.DataDownloadPhase]():                 string(v2.DataDownloadPhaseCanceled),
	reflect.TypeFor[v2.SnapshotType]():                      string(v2.SnapshotTypeCSI),
	reflect.TypeFor[v2.NodeOS]():                            string(v2.NodeOSWindows),
}

// Closed sets that Velero declares as plain strings, by field name.
var enumFields = map[string]string{
	"UploaderType":   "kopia",
	"RepositoryType": "restic",
}

func kindOf(object any) string {
	return reflect.TypeOf(object).Elem().Name()
}

func zero(object any, apiVersion string) any {
	fresh := reflect.New(reflect.TypeOf(object).Elem())
	name(fresh, object, apiVersion)
	return fresh.Interface()
}

func full(object any, apiVersion string) any {
	fresh := reflect.New(reflect.TypeOf(object).Elem())
	filler := &filler{}
	filler.fill(fresh.Elem(), "")
	name(fresh, object, apiVersion)
	return fresh.Interface()
}

func name(fresh reflect.Value, object any, apiVersion string) {
	meta := fresh.Elem().FieldByName("ObjectMeta").Addr().Interface().(*metav1.ObjectMeta)
	meta.Name = "golden"
	types := fresh.Elem().FieldByName("TypeMeta").Addr().Interface().(*metav1.TypeMeta)
	types.APIVersion, types.Kind = apiVersion, kindOf(object)
}

// filler gives every field a value of its own: the counter only grows.
type filler struct{ count int }

func (f *filler) next() int {
	f.count++
	return f.count
}

func (f *filler) fill(value reflect.Value, field string) {
	switch value.Interface().(type) {
	case metav1.Time:
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		value.Set(reflect.ValueOf(metav1.NewTime(start.Add(time.Duration(f.next()) * time.Hour))))
		return
	case metav1.Duration:
		length := time.Duration(f.next())*time.Minute + 1500*time.Millisecond
		value.Set(reflect.ValueOf(metav1.Duration{Duration: length}))
		return
	case runtime.RawExtension:
		raw := fmt.Sprintf(`{"name":"raw-%d","nested":{"list":[1,"two",null]}}`, f.next())
		value.Set(reflect.ValueOf(runtime.RawExtension{Raw: []byte(raw)}))
		return
	case metav1.FieldsV1:
		raw := fmt.Sprintf(`{"f:field-%d":{}}`, f.next())
		value.Set(reflect.ValueOf(metav1.FieldsV1{Raw: []byte(raw)}))
		return
	case []byte:
		value.SetBytes(fmt.Appendf(nil, "bytes-%d", f.next()))
		return
	}
	if known, ok := enums[value.Type()]; ok {
		value.SetString(known)
		return
	}
	switch value.Kind() {
	case reflect.Struct:
		for i := range value.NumField() {
			f.fill(value.Field(i), value.Type().Field(i).Name)
		}
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		f.fill(value.Elem(), field)
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 2, 2))
		f.fill(value.Index(0), field)
		f.fill(value.Index(1), field)
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		for range 2 {
			key, item := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
			f.fill(key, field)
			f.fill(item, field)
			value.SetMapIndex(key, item)
		}
	case reflect.String:
		if known, ok := enumFields[field]; ok {
			value.SetString(known)
			return
		}
		value.SetString(fmt.Sprintf("text-%d", f.next()))
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int:
		value.SetInt(int64(f.next()))
	case reflect.Int64:
		value.SetInt(5_000_000_000 + int64(f.next()))
	default:
		panic("no rule for " + value.Type().String())
	}
}
