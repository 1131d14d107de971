package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/vmware-tanzu/velero/pkg/plugin/generated"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// slowVolumes are volumes whose snapshots take time to create and to upload.
//
// All state is in files beside a snapshot's data, so that any process can tell how far things are,
// cancel the upload or do it again: creation.json, and upload.json once there was an upload.
type slowVolumes struct {
	volumes
	creationTime, uploadTime time.Duration
}

// span is the content of these files: when something begins, when it is due, and how it failed.
type span struct {
	started, completes time.Time
	err                string
}

var errCanceled = errors.New("canceled")

// changing lets one call at a time decide between done and canceled.
var changing sync.Mutex

func (v *slowVolumes) creationFile(id string) string {
	return filepath.Join(v.snapshot(id), "creation.json")
}

func (v *slowVolumes) uploadFile(id string) string {
	return filepath.Join(v.snapshot(id), "upload.json")
}

func (v *slowVolumes) uploaded(id string) string { return filepath.Join(v.root, "uploaded", id) }

func (v *slowVolumes) isUploaded(id string) bool {
	_, err := os.Stat(v.uploaded(id))
	return isName(id) && err == nil
}

// create copies the data at once, as a snapshot must; only its completion takes time.
func (v *slowVolumes) create(volume string, tags map[string]string) (string, error) {
	return v.createSnapshot(volume, tags, func(folder string) error {
		now := time.Now()
		return writeSpan(filepath.Join(folder, "creation.json"), span{now, now.Add(v.creationTime), ""})
	})
}

// upload waits for the creation to be complete, then for the upload to be due, and copies.
func (v *slowVolumes) upload(id string) error {
	if v.isUploaded(id) {
		return nil
	}
	if !v.hasSnapshot(id) {
		return fmt.Errorf("snapshot %s not found", id)
	}
	creation, err := readSpan(v.creationFile(id))
	if err != nil {
		return err
	}
	start := time.Now()
	if start.Before(creation.completes) {
		start = creation.completes
	}
	due := start.Add(v.uploadTime)
	changing.Lock()
	err = writeSpan(v.uploadFile(id), span{start, due, ""})
	changing.Unlock()
	if err != nil {
		return err
	}
	for time.Now().Before(due) {
		// Cancel may come from another process, so there is only the file to look at.
		if v.isCanceled(id) {
			return errCanceled
		}
		time.Sleep(min(10*time.Millisecond, time.Until(due)))
	}
	return v.copyUp(id)
}

// copyUp makes the copy appear whole or, if canceled, not at all.
func (v *slowVolumes) copyUp(id string) error {
	if err := os.MkdirAll(filepath.Join(v.root, "uploaded"), 0o777); err != nil {
		return err
	}
	folder, err := os.MkdirTemp(filepath.Join(v.root, "uploaded"), partial)
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder) // of no effect after the rename
	err = os.CopyFS(folder, os.DirFS(filepath.Join(v.snapshot(id), "data")))

	changing.Lock()
	defer changing.Unlock()
	if v.isCanceled(id) {
		return errCanceled
	}
	if err != nil {
		return err
	}
	err = os.Rename(folder, v.uploaded(id))
	if errors.Is(err, fs.ErrExist) {
		return nil // another upload of the same snapshot was faster
	}
	return err
}

// isCanceled is about the upload; one whose snapshot was deleted counts as canceled.
func (v *slowVolumes) isCanceled(id string) bool {
	upload, err := readSpan(v.uploadFile(id))
	return err != nil || upload.err != ""
}

// cancel has an effect only on an upload that has begun and is not done, no matter in which
// process.
func (v *slowVolumes) cancel(id string) error {
	changing.Lock()
	defer changing.Unlock()
	if !v.hasSnapshot(id) || v.isUploaded(id) {
		return nil
	}
	upload, err := readSpan(v.uploadFile(id))
	if err != nil || upload.err != "" {
		return nil
	}
	upload.err = errCanceled.Error()
	return writeSpan(v.uploadFile(id), upload)
}

// delete takes the state away with the snapshot, which ends an upload that runs.
func (v *slowVolumes) delete(id string) error {
	if !isName(id) {
		return nil
	}
	changing.Lock()
	defer changing.Unlock()
	return errors.Join(v.deleteSnapshot(id), os.RemoveAll(v.uploaded(id)))
}

func (v *slowVolumes) progress(id string) (*generated.OperationProgress, error) {
	if !v.hasSnapshot(id) {
		return nil, fmt.Errorf("operation ID %s is invalid", id) // the text is Velero's
	}
	total, err := bytesIn(filepath.Join(v.snapshot(id), "data"))
	if err != nil {
		return nil, err
	}
	creation, err := readSpan(v.creationFile(id))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	progress := &generated.OperationProgress{
		NTotal:         total,
		OperationUnits: "Bytes",
		Started:        timestamppb.New(creation.started),
		Updated:        timestamppb.New(now),
	}
	if now.Before(creation.completes) {
		progress.Description = "creating"
		progress.NCompleted = creation.part(total, now)
		return progress, nil
	}
	upload, err := readSpan(v.uploadFile(id))
	if err != nil {
		progress.Description = "created"
		progress.NCompleted = total
		progress.Completed = true
		return progress, nil
	}
	progress.Started = timestamppb.New(upload.started)
	switch {
	case v.isUploaded(id):
		progress.Description = "uploaded"
		progress.NCompleted = total
		progress.Completed = true
	case upload.err != "":
		progress.Description = "uploading"
		progress.Err = upload.err
		progress.Completed = true
	default:
		progress.Description = "uploading"
		progress.NCompleted = upload.part(total, now)
	}
	return progress, nil
}

// part is how much of total is done by now, as if it were done at an even pace.
func (s span) part(total int64, now time.Time) int64 {
	whole := s.completes.Sub(s.started).Milliseconds()
	gone := now.Sub(s.started).Milliseconds()
	if gone >= whole {
		return total
	}
	return total * max(gone, 0) / whole
}

// bytesIn is the size of all files in a folder.
func bytesIn(folder string) (int64, error) {
	var total int64
	err := filepath.WalkDir(folder, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}

func writeSpan(path string, s span) error {
	return writeJSON(path, map[string]string{
		"started":   strconv.FormatInt(s.started.UnixMilli(), 10),
		"completes": strconv.FormatInt(s.completes.UnixMilli(), 10),
		"error":     s.err,
	})
}

func readSpan(path string) (span, error) {
	object, err := readJSON(path)
	if err != nil {
		return span{}, err
	}
	started, err1 := strconv.ParseInt(object["started"], 10, 64)
	completes, err2 := strconv.ParseInt(object["completes"], 10, 64)
	return span{time.UnixMilli(started), time.UnixMilli(completes), object["error"]}, errors.Join(err1, err2)
}
