// Decodes each document of the manifests strictly: an unknown or repeated field, or a value of the wrong type, is an
// error. kube-score, which looks for bad practice, ignores such fields. The program needs no cluster and no network.
//
//	go run . MANIFEST...
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
)

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	failed := len(os.Args) < 2
	for _, path := range os.Args[1:] {
		count, err := check(decoder, path)
		if err != nil {
			fmt.Printf("%s: object %d: %v\n", path, count+1, err)
			failed = true
			continue
		}
		fmt.Printf("%s: %d objects are valid\n", path, count)
	}
	if failed {
		os.Exit(1)
	}
}

// check returns the number of valid objects at the beginning of a file, and the error of the next one.
func check(decoder runtime.Decoder, path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for count := 0; ; count++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		if _, _, err := decoder.Decode(document, nil, nil); err != nil {
			return count, err
		}
	}
}
