package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// groupController takes snapshots of several volumes at a time. They are deleted together.
type groupController struct {
	csi.UnimplementedGroupControllerServer
	*controller
}

func (g *groupController) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT,
		}},
	}}}, nil
}

func (g *groupController) CreateVolumeGroupSnapshot(ctx context.Context, request *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	switches, err := g.switches.read()
	if err != nil {
		return nil, err
	}
	try, err := g.snapshotTries.begin(request.Name)
	if err != nil {
		return nil, err
	}
	defer g.snapshotTries.end(try)
	if _, err := g.folders.read(groups, request.Name); errors.Is(err, errGone) {
		if err := g.newGroup(ctx, switches, try, request); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	group, err := g.group(request.Name)
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: group}, err
}

// newGroup makes the members first and writes down the group last, so that a repeated call that
// finds the group finds its members too, and one that does not goes on with them.
func (g *groupController) newGroup(ctx context.Context, switches *switches, try *attempt, request *csi.CreateVolumeGroupSnapshotRequest) error {
	if err := try.wait(ctx, milliseconds(switches.CreateTakesMS)); err != nil {
		return err
	}
	group := &about{Names: namesIn(request), CreatedMS: time.Now().UnixMilli()}
	for number, volumeID := range request.SourceVolumeIds {
		volume, err := g.folders.read(volumes, volumeID)
		if err != nil {
			return notFound(err, volumeID)
		}
		known := snapshotOf(volumeID, volume, group.Names)
		known.Group = request.Name
		if switches.failsCreate(try, append(known.Names, request.Name)) {
			return status.Errorf(codes.Internal, "group %s fails as told", request.Name)
		}
		id := fmt.Sprintf("%s-%d", request.Name, number)
		group.Members = append(group.Members, id)
		_, err = g.folders.read(snapshots, id)
		if errors.Is(err, errGone) {
			err = g.folders.create(ctx, snapshots, id, g.folders.data(volumes, volumeID), known)
		}
		if err != nil {
			return err
		}
	}
	return g.folders.create(ctx, groups, request.Name, "", group)
}

// group is ready when each of its snapshots is.
func (g *groupController) group(id string) (*csi.VolumeGroupSnapshot, error) {
	known, err := g.folders.read(groups, id)
	if err != nil {
		return nil, notFound(err, id)
	}
	group := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: id,
		CreationTime:    timestamppb.New(time.UnixMilli(known.CreatedMS)),
		ReadyToUse:      true,
	}
	for _, member := range known.Members {
		snapshot, err := g.snapshot(member)
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		group.ReadyToUse = group.ReadyToUse && snapshot.ReadyToUse
		group.Snapshots = append(group.Snapshots, snapshot)
	}
	return group, nil
}

func (g *groupController) GetVolumeGroupSnapshot(_ context.Context, request *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	group, err := g.group(request.GroupSnapshotId)
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: group}, err
}

func (g *groupController) DeleteVolumeGroupSnapshot(_ context.Context, request *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	known, err := g.folders.read(groups, request.GroupSnapshotId)
	if errors.Is(err, errGone) {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if !slices.Equal(sorted(request.SnapshotIds), sorted(known.Members)) {
		return nil, status.Errorf(codes.InvalidArgument, "group %s has the snapshots %v, not %v", request.GroupSnapshotId, known.Members, request.SnapshotIds)
	}
	for _, member := range known.Members {
		if err := g.removeSnapshot(member); err != nil {
			return nil, err
		}
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, g.folders.remove(groups, request.GroupSnapshotId)
}

func sorted(ids []string) []string { return slices.Sorted(slices.Values(ids)) }
