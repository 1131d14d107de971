package main

import (
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// filler gives every field a value of its own: the counter only grows.
type filler struct{ count int }

func (f *filler) next() int {
	f.count++
	return f.count
}

func (f *filler) fill(value reflect.Value) {
	if value.Type() == reflect.TypeFor[metav1.Time]() {
		start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		value.Set(reflect.ValueOf(metav1.NewTime(start.Add(time.Duration(f.next()) * time.Hour))))
		return
	}
	switch value.Kind() {
	case reflect.Struct:
		for i := range value.NumField() {
			f.fill(value.Field(i))
		}
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		f.fill(value.Elem())
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 2, 2))
		f.fill(value.Index(0))
		f.fill(value.Index(1))
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		for range 2 {
			key, item := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
			f.fill(key)
			f.fill(item)
			value.SetMapIndex(key, item)
		}
	case reflect.String:
		value.SetString(fmt.Sprintf("text-%d <&> \"\\\u2028 é", f.next()))
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int64:
		value.SetInt(5_000_000_000 + int64(f.next()))
	default:
		panic("no rule for " + value.Type().String())
	}
}
