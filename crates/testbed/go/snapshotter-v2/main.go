// A VolumeSnapshotter v2 plugin directly on go-plugin and gRPC, without Velero's framework, which
// knows no such kind. It shows that the v2 contract can be met from outside with nothing but the
// handshake and the wire format. plugins/fixture/README.md says what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/go-plugin"
	"github.com/vmware-tanzu/velero/pkg/plugin/generated"
	"google.golang.org/grpc"
)

const (
	pluginName = "fixture.bowline.io/vs-v2"
	kindV1     = "VolumeSnapshotter"
	kindV2     = "VolumeSnapshotterV2"
)

// kind is what the plugin lists itself as. A host that has not said that it knows v2 would refuse
// to start over an unknown kind, so it gets v1.
func kind() string {
	known := strings.Split(os.Getenv("BOWLINE_PLUGIN_KINDS"), ",")
	if slices.Contains(known, kindV2) {
		return kindV2
	}
	return kindV1
}

// services makes functions that register gRPC services into what go-plugin calls a plugin.
type services struct {
	plugin.NetRPCUnsupportedPlugin
	register func(*grpc.Server)
}

func (s services) GRPCServer(_ *plugin.GRPCBroker, server *grpc.Server) error {
	s.register(server)
	return nil
}

func (s services) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("this program is no host")
}

// lister tells the host what is here. The command must be what the host launched, to the letter.
type lister struct{}

func (lister) ListPlugins(context.Context, *generated.Empty) (*generated.ListPluginsResponse, error) {
	return &generated.ListPluginsResponse{Plugins: []*generated.PluginIdentifier{
		{Command: os.Args[0], Kind: kind(), Name: pluginName},
	}}, nil
}

// checkName refuses calls for plugins that are not here, as Velero's framework does.
func checkName(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if named, ok := request.(interface{ GetPlugin() string }); ok && named.GetPlugin() != pluginName {
		return nil, fmt.Errorf(" plugin: %s was not found or has an invalid name format", named.GetPlugin())
	}
	return next(ctx, request)
}

func main() {
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion:  2,
			MagicCookieKey:   "VELERO_PLUGIN",
			MagicCookieValue: "hello",
		},
		Plugins: plugin.PluginSet{
			"PluginLister": services{register: func(server *grpc.Server) {
				generated.RegisterPluginListerServer(server, lister{})
			}},
			kind(): services{register: func(server *grpc.Server) {
				if kind() == kindV2 {
					server.RegisterService(&serviceV2, &snapshotter{})
				} else {
					generated.RegisterVolumeSnapshotterServer(server, &snapshotterV1{})
				}
			}},
		},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.UnaryInterceptor(checkName))...)
		},
	})
}
