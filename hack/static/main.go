// Command static fails unless programs are what an image of nothing else can run:
//
//	static ARCHITECTURE FILE...
//
// Each must be a program for Linux on that architecture, in Go's words, that asks for no interpreter and no shared library.
package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: static ARCHITECTURE FILE...")
		os.Exit(2)
	}
	failed := false
	for _, file := range os.Args[2:] {
		if err := check(file, os.Args[1]); err != nil {
			fmt.Fprintf(os.Stderr, "static: %s: %v\n", file, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// machines are the architectures that images are made for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// check says what keeps a program from running alone.
func check(file, architecture string) error {
	machine, ok := machines[architecture]
	if !ok {
		return fmt.Errorf("no image is made for %q", architecture)
	}
	program, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }() // it was only read
	if program.Machine != machine {
		return fmt.Errorf("it is for %v, not for %s", program.Machine, architecture)
	}
	for _, part := range program.Progs {
		if part.Type == elf.PT_INTERP {
			return errors.New("it asks for an interpreter: it is linked dynamically")
		}
	}
	libraries, err := program.ImportedLibraries()
	if err != nil {
		return err
	}
	if len(libraries) > 0 {
		return fmt.Errorf("it asks for %q", libraries)
	}
	return nil
}
