package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nodeService mounts volumes for pods.
type nodeService struct {
	csi.UnimplementedNodeServer
	name    string
	folders *folders
}

func (n *nodeService) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.name}, nil
}

func (n *nodeService) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (n *nodeService) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if _, err := n.folders.read(volumes, request.VolumeId); err != nil {
		return nil, notFound(err, request.VolumeId)
	}
	mounted, err := isMounted(request.TargetPath)
	if err == nil && !mounted {
		err = n.mount(request)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "cannot mount %s: %v", request.VolumeId, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// mount binds the folder of a volume. A bind mount gets read-only in a second step only.
func (n *nodeService) mount(request *csi.NodePublishVolumeRequest) error {
	target := request.TargetPath
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	if err := unix.Mount(n.folders.data(volumes, request.VolumeId), target, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if !request.Readonly {
		return nil
	}
	err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	if err != nil {
		err = errors.Join(err, unix.Unmount(target, 0))
	}
	return err
}

func (n *nodeService) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	mounted, err := isMounted(request.TargetPath)
	if err == nil && mounted {
		err = unix.Unmount(request.TargetPath, 0)
	}
	if err == nil {
		// Not with all that is in it: if it is still mounted, that is somebody's data.
		if err = os.Remove(request.TargetPath); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "cannot unmount %s: %v", request.VolumeId, err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func isMounted(path string) (bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			return true, nil
		}
	}
	return false, nil
}
