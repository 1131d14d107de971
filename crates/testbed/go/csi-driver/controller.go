package main

import (
	"context"
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controller makes and removes volumes and snapshots. The ids that it hands out are the names that
// the sidecars chose, so that a call that is repeated finds what the first one made.
type controller struct {
	csi.UnimplementedControllerServer
	folders       *folders
	switches      switchFile
	volumeTries   *attempts
	snapshotTries *attempts
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, capability := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: capability}},
		})
	}
	return response, nil
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if _, err := c.folders.read(volumes, request.VolumeId); err != nil {
		return nil, notFound(err, request.VolumeId)
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: request.VolumeCapabilities},
	}, nil
}

func (c *controller) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	for _, capability := range request.VolumeCapabilities {
		if capability.GetBlock() != nil {
			return nil, status.Error(codes.InvalidArgument, "a folder is no block device")
		}
	}
	switches, err := c.switches.read()
	if err != nil {
		return nil, err
	}
	try, err := c.volumeTries.begin(request.Name)
	if err != nil {
		return nil, err
	}
	defer c.volumeTries.end(try)
	known, err := c.folders.read(volumes, request.Name)
	if errors.Is(err, errGone) {
		if err := try.wait(ctx, milliseconds(switches.VolumeTakesMS)); err != nil {
			return nil, err
		}
		names := namesIn(request)
		if hits(switches.FailVolume, append(names, request.Name)...) {
			return nil, status.Errorf(codes.Internal, "volume %s fails as told", request.Name)
		}
		known, err = c.newVolume(ctx, request, names)
	}
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:      request.Name,
		CapacityBytes: known.Size,
		ContentSource: request.VolumeContentSource,
	}}, nil
}

func (c *controller) newVolume(ctx context.Context, request *csi.CreateVolumeRequest, names []string) (*about, error) {
	known := &about{
		Names:     names,
		Size:      request.GetCapacityRange().GetRequiredBytes(),
		CreatedMS: time.Now().UnixMilli(),
	}
	source := ""
	if id := request.GetVolumeContentSource().GetSnapshot().GetSnapshotId(); id != "" {
		snapshot, err := c.snapshot(id)
		if err != nil {
			return nil, notFound(err, id)
		}
		if !snapshot.ReadyToUse {
			return nil, status.Errorf(codes.Unavailable, "snapshot %s is not ready to use", id)
		}
		source = c.folders.data(snapshots, id)
	} else if id := request.GetVolumeContentSource().GetVolume().GetVolumeId(); id != "" {
		if _, err := c.folders.read(volumes, id); err != nil {
			return nil, notFound(err, id)
		}
		source = c.folders.data(volumes, id)
	}
	return known, c.folders.create(ctx, volumes, request.Name, source, known)
}

func (c *controller) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, c.folders.remove(volumes, request.VolumeId)
}

// notFound makes a status of what reading something by an id of the caller's ended with.
func notFound(err error, id string) error {
	if errors.Is(err, errGone) {
		return status.Errorf(codes.NotFound, "%s does not exist", id)
	}
	return err
}
