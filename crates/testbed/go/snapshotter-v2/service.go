package main

import (
	"context"
	"slices"

	"github.com/vmware-tanzu/velero/pkg/plugin/generated"
	biav2 "github.com/vmware-tanzu/velero/pkg/plugin/generated/backupitemaction/v2"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The messages that v2 adds have the shape of messages that Velero publishes, with the same field
// numbers and types, so those stand in for them: names of messages do not go over the wire.
type (
	progressRequest  = generated.DeleteSnapshotRequest // plugin=1, snapshotID=2
	cancelRequest    = generated.DeleteSnapshotRequest // plugin=1, operationID=2
	uploadRequest    = generated.DeleteSnapshotRequest // plugin=1, snapshotID=2
	progressResponse = biav2.BackupItemActionProgressResponse
)

// serverV2 is the service v2.VolumeSnapshotter.
type serverV2 interface {
	generated.VolumeSnapshotterServer
	Progress(context.Context, *progressRequest) (*progressResponse, error)
	Cancel(context.Context, *cancelRequest) (*emptypb.Empty, error)
	UploadSnapshot(context.Context, *uploadRequest) (*generated.Empty, error)
}

// serviceV2 has the seven methods of v1, whose handlers serve as they are (only the path differs,
// and that is made of the service's name and the method's), and three more.
var serviceV2 = grpc.ServiceDesc{
	ServiceName: "v2.VolumeSnapshotter",
	HandlerType: (*serverV2)(nil),
	Methods: append(
		slices.Clone(generated.VolumeSnapshotter_ServiceDesc.Methods),
		unary("Progress", serverV2.Progress),
		unary("Cancel", serverV2.Cancel),
		unary("UploadSnapshot", serverV2.UploadSnapshot),
	),
}

// unary describes a method as protoc's gRPC plugin would.
func unary[Request, Response any](name string, method func(serverV2, context.Context, *Request) (*Response, error)) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(server any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			request := new(Request)
			if err := decode(request); err != nil {
				return nil, err
			}
			info := &grpc.UnaryServerInfo{Server: server, FullMethod: "/v2.VolumeSnapshotter/" + name}
			// There always is an interceptor: main sets one.
			return intercept(ctx, request, info, func(ctx context.Context, request any) (any, error) {
				return method(server.(serverV2), ctx, request.(*Request))
			})
		},
	}
}
