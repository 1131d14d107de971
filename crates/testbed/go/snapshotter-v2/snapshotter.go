package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/vmware-tanzu/velero/pkg/plugin/generated"
	"google.golang.org/protobuf/types/known/emptypb"
)

// driver is the CSI driver whose volumes are ours.
const driver = "fixture.bowline.io"

// snapshotter is the v2 service. The pointer is atomic because Init may come again at any time,
// with other calls under way.
type snapshotter struct {
	volumes atomic.Pointer[slowVolumes]
}

// snapshotterV1 is what hosts see that know v1 only: all is done when CreateSnapshot returns.
type snapshotterV1 struct{ snapshotter }

func (s *snapshotter) open() (*slowVolumes, error) {
	if v := s.volumes.Load(); v != nil {
		return v, nil
	}
	return nil, errNotInitialized
}

func (s *snapshotter) Init(_ context.Context, request *generated.VolumeSnapshotterInitRequest) (*generated.Empty, error) {
	root, err := rootOf(request.Config)
	if err != nil {
		return nil, err
	}
	creation, err := milliseconds(request.Config, "create-ms")
	if err != nil {
		return nil, err
	}
	upload, err := milliseconds(request.Config, "upload-ms")
	if err != nil {
		return nil, err
	}
	s.volumes.Store(&slowVolumes{volumes{root}, creation, upload})
	return &generated.Empty{}, nil
}

func milliseconds(config map[string]string, key string) (time.Duration, error) {
	if config[key] == "" {
		return 0, nil
	}
	number, err := strconv.ParseUint(config[key], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("config key %q is not a number of milliseconds: %q", key, config[key])
	}
	return time.Duration(number) * time.Millisecond, nil
}

func (s *snapshotter) GetVolumeInfo(_ context.Context, request *generated.GetVolumeInfoRequest) (*generated.GetVolumeInfoResponse, error) {
	v, err := s.open()
	if err != nil {
		return nil, err
	}
	kind, iops, err := v.info(request.VolumeID)
	return &generated.GetVolumeInfoResponse{VolumeType: kind, Iops: iops}, err
}

func (s *snapshotter) CreateSnapshot(_ context.Context, request *generated.CreateSnapshotRequest) (*generated.CreateSnapshotResponse, error) {
	v, err := s.open()
	if err != nil {
		return nil, err
	}
	id, err := v.create(request.VolumeID, request.Tags)
	return &generated.CreateSnapshotResponse{SnapshotID: id}, err
}

// CreateSnapshot of v1 goes on with the upload, which itself waits for the creation.
func (s *snapshotterV1) CreateSnapshot(ctx context.Context, request *generated.CreateSnapshotRequest) (*generated.CreateSnapshotResponse, error) {
	response, err := s.snapshotter.CreateSnapshot(ctx, request)
	if err != nil {
		return nil, err
	}
	_, err = s.UploadSnapshot(ctx, &uploadRequest{Plugin: request.Plugin, SnapshotID: response.SnapshotID})
	return response, err
}

func (s *snapshotter) CreateVolumeFromSnapshot(_ context.Context, request *generated.CreateVolumeRequest) (*generated.CreateVolumeResponse, error) {
	v, err := s.open()
	if err != nil {
		return nil, err
	}
	id, err := v.createVolume(request.SnapshotID, request.VolumeType, request.VolumeAZ, request.Iops)
	return &generated.CreateVolumeResponse{VolumeID: id}, err
}

func (s *snapshotter) DeleteSnapshot(_ context.Context, request *generated.DeleteSnapshotRequest) (*generated.Empty, error) {
	v, err := s.open()
	if err != nil {
		return nil, err
	}
	return &generated.Empty{}, v.delete(request.SnapshotID)
}

func (s *snapshotter) GetVolumeID(_ context.Context, request *generated.GetVolumeIDRequest) (*generated.GetVolumeIDResponse, error) {
	var pv struct {
		Spec struct {
			CSI struct{ Driver, VolumeHandle string }
		}
	}
	if err := json.Unmarshal(request.PersistentVolume, &pv); err != nil {
		return nil, err
	}
	if pv.Spec.CSI.Driver != driver {
		return &generated.GetVolumeIDResponse{}, nil // which means: not ours
	}
	return &generated.GetVolumeIDResponse{VolumeID: pv.Spec.CSI.VolumeHandle}, nil
}

// SetVolumeID must return the whole object, so it works on one without types and keeps numbers as
// they are written.
func (s *snapshotter) SetVolumeID(_ context.Context, request *generated.SetVolumeIDRequest) (*generated.SetVolumeIDResponse, error) {
	decoder := json.NewDecoder(bytes.NewReader(request.PersistentVolume))
	decoder.UseNumber()
	var pv map[string]any
	if err := decoder.Decode(&pv); err != nil {
		return nil, err
	}
	if pv == nil {
		return nil, fmt.Errorf("not an object: %s", request.PersistentVolume)
	}
	csi := member(member(pv, "spec"), "csi")
	csi["volumeHandle"] = request.VolumeID
	text, err := json.Marshal(pv)
	return &generated.SetVolumeIDResponse{PersistentVolume: text}, err
}

// member is an object within an object, made if it is not there.
func member(object map[string]any, key string) map[string]any {
	inner, ok := object[key].(map[string]any)
	if !ok {
		inner = map[string]any{}
		object[key] = inner
	}
	return inner
}

func (s *snapshotter) Progress(_ context.Context, request *progressRequest) (*progressResponse, error) {
	v, err := s.open()
	if err != nil {
		return nil, err
	}
	progress, err := v.progress(request.SnapshotID)
	return &progressResponse{Progress: progress}, err
}

func (s *snapshotter) Cancel(_ context.Context, request *cancelRequest) (*emptypb.Empty, error) {
	v, err := s.open()
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, v.cancel(request.SnapshotID)
}

// UploadSnapshot does not end with the call's context: a host that hangs up may ask for Progress.
func (s *snapshotter) UploadSnapshot(_ context.Context, request *uploadRequest) (*generated.Empty, error) {
	v, err := s.open()
	if err != nil {
		return nil, err
	}
	return &generated.Empty{}, v.upload(request.SnapshotID)
}
