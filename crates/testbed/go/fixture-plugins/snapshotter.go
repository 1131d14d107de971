package main

import (
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// driver is the CSI driver whose volumes are ours.
const driver = "fixture.bowline.io"

// snapshotter is atomic for the same reason as the store: Init may come again.
type snapshotter struct {
	volumes atomic.Pointer[volumes]
	reports atomic.Pointer[reports]
}

func newSnapshotter(logrus.FieldLogger) *snapshotter { return &snapshotter{} }

func (s *snapshotter) Init(config map[string]string) error {
	root, err := rootOf(config)
	if err != nil {
		return err
	}
	s.volumes.Store(&volumes{root})
	s.reports.Store(reportsOf(config, root))
	return nil
}

func (s *snapshotter) open() (*volumes, error) {
	if v := s.volumes.Load(); v != nil {
		return v, nil
	}
	return nil, errNotInitialized
}

func (s *snapshotter) GetVolumeID(pv runtime.Unstructured) (string, error) {
	content := pv.UnstructuredContent()
	if name, _, _ := unstructured.NestedString(content, "spec", "csi", "driver"); name != driver {
		return "", nil // which means: not ours
	}
	id, _, err := unstructured.NestedString(content, "spec", "csi", "volumeHandle")
	return id, err
}

func (s *snapshotter) SetVolumeID(pv runtime.Unstructured, id string) (runtime.Unstructured, error) {
	err := unstructured.SetNestedField(pv.UnstructuredContent(), id, "spec", "csi", "volumeHandle")
	return pv, err
}

func (s *snapshotter) GetVolumeInfo(id, _ string) (string, *int64, error) {
	v, err := s.open()
	if err != nil {
		return "", nil, err
	}
	kind, iops, err := v.info(id)
	if iops == 0 {
		return kind, nil, err
	}
	return kind, &iops, err
}

func (s *snapshotter) CreateSnapshot(volume, _ string, tags map[string]string) (string, error) {
	v, err := s.open()
	if err != nil {
		return "", err
	}
	id, err := v.createSnapshot(volume, tags, nil)
	r := s.reports.Load()
	if err != nil || r == nil || strings.HasPrefix(volume, "plain") {
		return id, err
	}
	report, err := r.backup(id, tags)
	if err != nil {
		return "", err
	}
	if r.withinCall {
		return id, report.run()
	}
	go func() { _ = report.run() }()
	return id, nil
}

func (s *snapshotter) CreateVolumeFromSnapshot(snapshot, kind, zone string, iops *int64) (string, error) {
	v, err := s.open()
	if err != nil {
		return "", err
	}
	if iops == nil {
		iops = new(int64)
	}
	r := s.reports.Load()
	if r == nil {
		return v.createVolume(snapshot, kind, zone, *iops)
	}
	tags, err := readJSON(filepath.Join(v.snapshot(snapshot), "tags.json"))
	if err != nil {
		return "", err
	}
	report, err := r.restore(snapshot, tags)
	if err != nil {
		return "", err
	}
	phase, err := report.untilEnd()
	if err != nil {
		return "", err
	}
	id, err := v.createVolume(snapshot, kind, zone, *iops)
	if err != nil {
		return "", err
	}
	return id, report.finish(phase, map[string]any{"volumeID": id})
}

func (s *snapshotter) DeleteSnapshot(id string) error {
	v, err := s.open()
	if err != nil {
		return err
	}
	return v.deleteSnapshot(id)
}
