package main

import (
	"context"
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func (c *controller) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	switches, err := c.switches.read()
	if err != nil {
		return nil, err
	}
	try, err := c.snapshotTries.begin(request.Name)
	if err != nil {
		return nil, err
	}
	defer c.snapshotTries.end(try)
	known, err := c.folders.read(snapshots, request.Name)
	if errors.Is(err, errGone) {
		known, err = c.newSnapshot(ctx, switches, try, request)
	}
	if err != nil {
		return nil, err
	}
	if known.Source != request.SourceVolumeId {
		return nil, status.Errorf(codes.AlreadyExists, "%s is a snapshot of %s", request.Name, known.Source)
	}
	snapshot, err := c.snapshot(request.Name)
	return &csi.CreateSnapshotResponse{Snapshot: snapshot}, err
}

func (c *controller) newSnapshot(ctx context.Context, switches *switches, try *attempt, request *csi.CreateSnapshotRequest) (*about, error) {
	volume, err := c.folders.read(volumes, request.SourceVolumeId)
	if err != nil {
		return nil, notFound(err, request.SourceVolumeId)
	}
	known := snapshotOf(request.SourceVolumeId, volume, namesIn(request))
	if err := try.wait(ctx, milliseconds(switches.CreateTakesMS)); err != nil {
		return nil, err
	}
	if switches.failsCreate(try, append(known.Names, request.Name)) {
		return nil, status.Errorf(codes.Internal, "snapshot %s fails as told", request.Name)
	}
	source := c.folders.data(volumes, request.SourceVolumeId)
	return known, c.folders.create(ctx, snapshots, request.Name, source, known)
}

func (s *switches) failsCreate(try *attempt, names []string) bool {
	unlucky := s.FailCreateEvery > 0 && try.number%s.FailCreateEvery == 0
	return unlucky || hits(s.FailCreate, names...)
}

// snapshotOf is about a new snapshot: it answers to the names of its volume too.
func snapshotOf(id string, volume *about, names []string) *about {
	return &about{
		Names:     append(names, volume.Names...),
		Size:      volume.Size,
		CreatedMS: time.Now().UnixMilli(),
		Source:    id,
	}
}

// snapshot is one as CSI has it. Whether it is ready depends on the switches as they are now.
func (c *controller) snapshot(id string) (*csi.Snapshot, error) {
	known, err := c.folders.read(snapshots, id)
	if err != nil {
		return nil, err
	}
	switches, err := c.switches.read()
	if err != nil {
		return nil, err
	}
	return &csi.Snapshot{
		SnapshotId:      id,
		SourceVolumeId:  known.Source,
		SizeBytes:       known.Size,
		CreationTime:    timestamppb.New(time.UnixMilli(known.CreatedMS)),
		ReadyToUse:      switches.isReady(id, known),
		GroupSnapshotId: known.Group,
	}, nil
}

func (s *switches) isReady(id string, known *about) bool {
	age := time.Since(time.UnixMilli(known.CreatedMS))
	return age >= milliseconds(s.ReadyAfterMS) && !hits(s.NeverReady, append(known.Names, id)...)
}

// DeleteSnapshot refuses members of a group, as drivers do: those go with it.
func (c *controller) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	known, err := c.folders.read(snapshots, request.SnapshotId)
	if err == nil && known.Group != "" {
		return nil, status.Errorf(codes.InvalidArgument, "snapshot %s is in the group %s", request.SnapshotId, known.Group)
	}
	return &csi.DeleteSnapshotResponse{}, c.removeSnapshot(request.SnapshotId)
}

func (c *controller) removeSnapshot(id string) error {
	switches, err := c.switches.read()
	if err != nil {
		return err
	}
	known, err := c.folders.read(snapshots, id)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	if hits(switches.FailDelete, append(known.Names, id)...) {
		return status.Errorf(codes.Internal, "snapshot %s stays as told", id)
	}
	return c.folders.remove(snapshots, id)
}

// ListSnapshots is how the snapshotter asks for one snapshot: there is no other call for it. All
// are on one page.
func (c *controller) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if request.StartingToken != "" {
		return nil, status.Error(codes.Aborted, "there is one page only")
	}
	ids := []string{request.SnapshotId}
	if request.SnapshotId == "" {
		var err error
		if ids, err = c.folders.list(snapshots); err != nil {
			return nil, err
		}
	}
	response := &csi.ListSnapshotsResponse{}
	for _, id := range ids {
		snapshot, err := c.snapshot(id)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if request.SourceVolumeId == "" || request.SourceVolumeId == snapshot.SourceVolumeId {
			response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshot})
		}
	}
	return response, nil
}
