package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// whoami is the key of an object that tells whose credentials the store works with.
const whoami = "whoami"

// store keeps objects as files. The pointer is atomic because Init may come again at any time,
// with other calls under way.
type store struct {
	config atomic.Pointer[storeConfig]
}

type storeConfig struct{ root, credentialsFile, identity string }

func newStore(logrus.FieldLogger) *store { return &store{} }

func (s *store) Init(config map[string]string) error {
	root, err := rootOf(config)
	if err != nil {
		return err
	}
	s.config.Store(&storeConfig{root, config["credentialsFile"], config["identity"]})
	return nil
}

// path is where an object lies.
func (s *store) path(bucket, key string) (string, error) {
	config := s.config.Load()
	if config == nil {
		return "", errNotInitialized
	}
	return filepath.Join(config.root, bucket, key), nil
}

func (s *store) PutObject(bucket, key string, body io.Reader) error {
	path, err := s.path(bucket, key)
	if err != nil {
		return err
	}
	if key == whoami {
		return readOnly(key)
	}
	return replaceFile(path, func(file io.Writer) error {
		_, err := io.Copy(file, body)
		return err
	})
}

func (s *store) ObjectExists(bucket, key string) (bool, error) {
	path, err := s.path(bucket, key)
	if err != nil {
		return false, err
	}
	return key == whoami || isFile(path), nil
}

func (s *store) GetObject(bucket, key string) (io.ReadCloser, error) {
	path, err := s.path(bucket, key)
	if err != nil {
		return nil, err
	}
	if key == whoami {
		config := s.config.Load()
		if config.credentialsFile != "" {
			return os.Open(config.credentialsFile)
		}
		return io.NopCloser(strings.NewReader(config.identity)), nil
	}
	if !isFile(path) {
		return nil, notFound(key)
	}
	return os.Open(path)
}

// ListCommonPrefixes answers as S3 does: the prefixes begin with the given one and end in the
// delimiter.
func (s *store) ListCommonPrefixes(bucket, prefix, delimiter string) ([]string, error) {
	keys, err := s.ListObjects(bucket, prefix)
	if err != nil || delimiter == "" {
		return nil, err
	}
	var prefixes []string
	for _, key := range keys {
		if head, _, found := strings.Cut(key[len(prefix):], delimiter); found {
			prefixes = append(prefixes, prefix+head+delimiter)
		}
	}
	slices.Sort(prefixes)
	return slices.Compact(prefixes), nil
}

func (s *store) ListObjects(bucket, prefix string) ([]string, error) {
	folder, err := s.path(bucket, "")
	if err != nil {
		return nil, err
	}
	var keys []string
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // no such bucket, or removed meanwhile
		}
		if err != nil || entry.IsDir() || strings.HasPrefix(entry.Name(), partial) {
			return err
		}
		key, err := filepath.Rel(folder, path)
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
		return err
	})
	slices.Sort(keys) // as whole strings, which the order of a walk is not
	return keys, err
}

func (s *store) DeleteObject(bucket, key string) error {
	path, err := s.path(bucket, key)
	if err != nil {
		return err
	}
	if key == whoami {
		return readOnly(key)
	}
	if !isFile(path) {
		return notFound(key)
	}
	return os.Remove(path)
}

func (s *store) CreateSignedURL(bucket, key string, ttl time.Duration) (string, error) {
	path, err := s.path(bucket, key)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("file://%s?ttl=%d", path, ttl.Nanoseconds()), nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func notFound(key string) error { return fmt.Errorf("object %s not found", key) }

func readOnly(key string) error { return fmt.Errorf("object %s cannot be written", key) }
