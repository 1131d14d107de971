package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// reportPause is how often a resource is written, and reportPauses how often at most.
const (
	reportPause  = 200 * time.Millisecond
	reportPauses = 1000
)

// apiServer is for requests that must not hang.
var apiServer = http.Client{Timeout: 30 * time.Second}

// reports writes VolumePluginBackups and VolumePluginRestores, as a plugin does that can reach the API server.
type reports struct {
	url, namespace, plugin string
	end                    string // when this file is there, what is reported has ended, with the phase in it
	withinCall             bool   // a snapshot is created only when its report has ended
}

// report is one resource.
type report struct {
	reports *reports
	path    string
}

// reportsOf is nil if the configuration does not ask for any.
func reportsOf(config map[string]string, root string) *reports {
	if config["report"] == "" {
		return nil
	}
	return &reports{
		url:        config["report"],
		namespace:  cmp.Or(config["report-namespace"], "velero"),
		plugin:     domain + "vs-v1",
		end:        filepath.Join(root, "report-end"),
		withinCall: config["report-within"] != "",
	}
}

func (r *reports) backup(snapshot string, tags map[string]string) (*report, error) {
	return r.create("VolumePluginBackup", snapshot, map[string]any{
		"volume": tags["velero.io/pv"], "backup": tags["velero.io/backup"],
	}, "snapshotID", snapshot)
}

func (r *reports) restore(snapshot string, tags map[string]string) (*report, error) {
	name := fmt.Sprintf("restore-%s-%d", snapshot, time.Now().UnixMilli())
	return r.create("VolumePluginRestore", name, map[string]any{
		"snapshotID": snapshot, "backup": tags["velero.io/backup"],
	}, "volumeID", "")
}

func (r *reports) create(kind, name string, spec map[string]any, key, id string) (*report, error) {
	spec["plugin"] = r.plugin
	spec["pluginSpecific"] = map[string]any{"written-by": r.plugin}
	folder := fmt.Sprintf("/apis/velero.io/v1/namespaces/%s/%ss", r.namespace, strings.ToLower(kind))
	err := r.send("POST", folder, "application/json", map[string]any{
		"apiVersion": "velero.io/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
		"status": map[string]any{
			"phase": "InProgress", key: id, "startTimestamp": time.Now().UTC().Format(time.RFC3339),
			"progress": bytesOf(0),
		},
	})
	return &report{r, folder + "/" + name}, err
}

// bytesOf has the names that a Go struct without tags has in JSON.
func bytesOf(done int) map[string]any {
	return map[string]any{"TotalBytes": reportPauses, "BytesDone": done}
}

func (r *reports) send(method, path, content string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(method, r.url+path+"?fieldManager=fixture", bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", content)
	response, err := apiServer.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s %s", method, path, response.Status, answer)
	}
	return err
}

func (r *report) patch(status map[string]any) error {
	return r.reports.send("PATCH", r.path, "application/merge-patch+json", map[string]any{"status": status})
}

// untilEnd writes how far it is until it is to end, and returns the phase that it is to end with.
func (r *report) untilEnd() (string, error) {
	for number := 1; number <= reportPauses; number++ {
		if phase, err := os.ReadFile(r.reports.end); err == nil {
			return strings.TrimSpace(string(phase)), nil
		}
		// It may have been deleted, which is no reason to stop.
		_ = r.patch(map[string]any{"progress": bytesOf(number)})
		time.Sleep(reportPause)
	}
	return "", fmt.Errorf("%s was not ended", r.path)
}

func (r *report) finish(phase string, more map[string]any) error {
	status := map[string]any{
		"phase": phase, "completionTimestamp": time.Now().UTC().Format(time.RFC3339),
		"progress": bytesOf(reportPauses),
	}
	for key, value := range more {
		status[key] = value
	}
	return r.patch(status)
}

// run does both.
func (r *report) run() error {
	phase, err := r.untilEnd()
	if err != nil {
		return err
	}
	return r.finish(phase, nil)
}
