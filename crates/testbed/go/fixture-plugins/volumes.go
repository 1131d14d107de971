package main

// Volumes and snapshots as folders, with the standard library only. The modules fixture-plugins
// and snapshotter-v2 each have a copy of this file, and the copies are the same.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// requestID is the tag that makes CreateSnapshot idempotent.
const requestID = "bowline.io/request-id"

// partial begins the names of files that are not whole yet.
const partial = ".partial-"

var errNotInitialized = errors.New("Init has not been called")

// rootOf reads the config keys that stores and snapshotters share, and does as they say.
func rootOf(config map[string]string) (string, error) {
	if config["die"] == "true" {
		os.Exit(3)
	}
	if config["hang"] == "true" {
		select {}
	}
	if text := config["fail"]; text != "" {
		return "", errors.New(text)
	}
	if config["root"] == "" {
		return "", errors.New(`config key "root" is required`)
	}
	return config["root"], nil
}

// volumes is a folder of volumes and snapshots.
type volumes struct{ root string }

// creating lets one call at a time look whether a snapshot exists and create it.
var creating sync.Mutex

func (v *volumes) volume(id string) string { return filepath.Join(v.root, "volumes", id) }

func (v *volumes) snapshot(id string) string { return filepath.Join(v.root, "snapshots", id) }

func (v *volumes) hasVolume(id string) bool {
	info, err := os.Stat(v.volume(id))
	return isName(id) && err == nil && info.IsDir()
}

// hasSnapshot looks for the tags, which are written last: a snapshot without is not whole.
func (v *volumes) hasSnapshot(id string) bool {
	_, err := os.Stat(filepath.Join(v.snapshot(id), "tags.json"))
	return isName(id) && err == nil
}

// info is the type and the IOPS of a volume, 0 for none.
func (v *volumes) info(id string) (string, int64, error) {
	if !v.hasVolume(id) {
		return "", 0, fmt.Errorf("volume %s not found", id)
	}
	if strings.HasSuffix(id, "-fast") {
		return "fixture", 100, nil
	}
	return "fixture", 0, nil
}

// createSnapshot calls finish, if there is one, with the new snapshot's folder before the snapshot
// counts as existing.
func (v *volumes) createSnapshot(volume string, tags map[string]string, finish func(folder string) error) (string, error) {
	switch volume {
	case "die":
		os.Exit(3)
	case "hang":
		select {}
	case "error":
		return "", errors.New("volume error cannot be snapshotted")
	}

	creating.Lock()
	defer creating.Unlock()
	if id := v.requested(tags[requestID]); id != "" {
		return id, nil
	}
	if !v.hasVolume(volume) {
		return "", fmt.Errorf("volume %s not found", volume)
	}
	id, err := firstFree(filepath.Join(v.root, "snapshots"), "snap-"+volume)
	if err != nil {
		return "", err
	}
	folder := v.snapshot(id)
	err = os.CopyFS(filepath.Join(folder, "data"), os.DirFS(v.volume(volume)))
	if err == nil && finish != nil {
		err = finish(folder)
	}
	if err == nil {
		if tags == nil {
			tags = map[string]string{}
		}
		err = writeJSON(filepath.Join(folder, "tags.json"), tags)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(folder))
	}
	return id, nil
}

// requested is the snapshot that was made for a request, or empty.
func (v *volumes) requested(request string) string {
	if request == "" {
		return ""
	}
	entries, _ := os.ReadDir(filepath.Join(v.root, "snapshots"))
	for _, entry := range entries {
		tags, err := readJSON(filepath.Join(v.snapshot(entry.Name()), "tags.json"))
		if err == nil && tags[requestID] == request {
			return entry.Name()
		}
	}
	return ""
}

func (v *volumes) createVolume(snapshot, kind, zone string, iops int64) (string, error) {
	if !v.hasSnapshot(snapshot) {
		return "", fmt.Errorf("snapshot %s not found", snapshot)
	}
	id, err := firstFree(filepath.Join(v.root, "volumes"), "vol-"+snapshot)
	if err != nil {
		return "", err
	}
	if err := os.CopyFS(v.volume(id), os.DirFS(filepath.Join(v.snapshot(snapshot), "data"))); err != nil {
		return "", err
	}
	about := map[string]string{"type": kind, "zone": zone, "iops": ""}
	if iops != 0 {
		about["iops"] = strconv.FormatInt(iops, 10)
	}
	return id, writeJSON(v.volume(id)+".json", about)
}

func (v *volumes) deleteSnapshot(id string) error {
	if !isName(id) {
		return nil // nothing can be there, and the path might lead elsewhere
	}
	return os.RemoveAll(v.snapshot(id))
}

// isName says whether an id names a folder of its own within another.
func isName(id string) bool {
	return id != "" && id != "." && id != ".." && !strings.Contains(id, "/")
}

// firstFree makes the folder with the lowest number that is not taken. Making it is what takes
// the number, so two processes cannot get the same.
func firstFree(parent, name string) (string, error) {
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return "", err
	}
	for number := 1; ; number++ {
		id := fmt.Sprintf("%s-%d", name, number)
		err := os.Mkdir(filepath.Join(parent, id), 0o777)
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return id, err
		}
	}
}

// replaceFile writes a file beside its place and renames it, so that nobody reads half of it.
func replaceFile(path string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), partial)
	if err != nil {
		return err
	}
	err = errors.Join(write(file), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return err
}

func writeJSON(path string, object map[string]string) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return replaceFile(path, func(file io.Writer) error {
		_, err := file.Write(text)
		return err
	})
}

func readJSON(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var object map[string]string
	err = json.Unmarshal(text, &object)
	return object, err
}
