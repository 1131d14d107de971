// A CSI driver for tests. Volumes and snapshots are folders below one root, so their data is real,
// and a test can look at it or write it without a pod. What it is told to do badly is in a file of
// switches, which it reads at each call; what it was asked is in a file of calls.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	name := flag.String("name", "", "name of the driver")
	root := flag.String("root", "", "folder for volumes, snapshots, switches and calls")
	socket := flag.String("socket", "", "where to serve CSI")
	node := flag.String("node", "", "name of the node, if there is one")
	registry := flag.String("registry", "", "folder that kubelet watches for plugins, if there is one")
	flag.Parse()
	if *name == "" || *root == "" || *socket == "" {
		log.Fatal("fatal: --name, --root and --socket are required")
	}

	folders, err := openFolders(*root)
	if err != nil {
		log.Fatal("fatal: ", err)
	}
	calls, err := openCalls(filepath.Join(*root, "calls.jsonl"))
	if err != nil {
		log.Fatal("fatal: ", err)
	}
	switches := switchFile(filepath.Join(*root, "switches.json"))
	controller := &controller{folders: folders, switches: switches, volumeTries: newAttempts(), snapshotTries: newAttempts()}
	failed := make(chan error)
	go func() {
		failed <- serve(*socket, func(server *grpc.Server) {
			csi.RegisterIdentityServer(server, &identity{name: *name})
			csi.RegisterControllerServer(server, controller)
			csi.RegisterGroupControllerServer(server, &groupController{controller: controller})
			csi.RegisterNodeServer(server, &nodeService{name: *node, folders: folders})
		}, grpc.UnaryInterceptor(calls.record))
	}()
	if *registry != "" {
		go func() {
			failed <- serve(filepath.Join(*registry, *name+"-reg.sock"), func(server *grpc.Server) {
				registration.RegisterRegistrationServer(server, &registrar{name: *name, socket: *socket})
			})
		}()
	}
	log.Fatal("fatal: ", <-failed)
}

// serve returns only when it cannot go on.
func serve(path string, register func(*grpc.Server), options ...grpc.ServerOption) error {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer(options...)
	register(server)
	return server.Serve(listener)
}

// registrar tells kubelet of the driver.
type registrar struct {
	registration.UnsafeRegistrationServer
	name, socket string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.name,
		Endpoint:          r.socket,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		log.Print("error: kubelet does not want the driver: ", status.Error)
		os.Exit(1)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
