package main

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

const (
	readBytes = 16 << 10
	// Longest sleep of the loop, so that it notices the end of its time.
	sleepMaxMs = 20
	// Timeout for answers after the last request.
	drainWait = 10 * time.Second
	// The timer's index among the events; connections have their own.
	timerPlace = -1
	// Linux' number of the monotonic clock.
	clockMonotonic = 1
)

// load is one thread with one epoll loop over plain sockets, each with at most one request in progress: it shares the machine with the
// measured server, and must be lean. A kernel timer, finer than a millisecond, keeps a steady rate.
type load struct {
	address     string
	connections int
	until       time.Time
	// 0: every connection sends its next request after its answer.
	perSecond int
	render    func(request []byte, number int, now time.Time) []byte
	answer    func(bytes []byte) (int, error)
	answered  func(number int, sent, now time.Time)

	epoll   int
	timer   int
	sockets []socket
	free    []int
	// Requests of a steady rate that wait for a free connection.
	owed    uint64
	asked   int
	waiting int
	request []byte
}

type socket struct {
	descriptor int
	number     int
	sent       time.Time
	in         []byte
	filled     int
}

func (load *load) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer load.close()
	if err := load.open(); err != nil {
		return err
	}
	if load.perSecond == 0 {
		now := time.Now()
		for len(load.free) > 0 {
			if err := load.send(now); err != nil {
				return err
			}
		}
	}
	events := make([]syscall.EpollEvent, load.connections+1)
	for {
		count, err := syscall.EpollWait(load.epoll, events, sleepMaxMs)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		now := time.Now()
		goesOn := now.Before(load.until)
		if !goesOn && load.waiting == 0 {
			return nil
		}
		if now.After(load.until.Add(drainWait)) {
			return fmt.Errorf("%d requests had no answer %s after the last", load.waiting, drainWait)
		}
		for _, event := range events[:max(count, 0)] {
			if event.Fd == timerPlace {
				load.tick()
			} else if err := load.read(int(event.Fd)); err != nil {
				return err
			}
		}
		for goesOn && len(load.free) > 0 && (load.perSecond == 0 || load.owed > 0) {
			if load.perSecond > 0 {
				load.owed--
			}
			if err := load.send(time.Now()); err != nil {
				return err
			}
		}
	}
}

func (load *load) open() (err error) {
	load.timer = -1
	if load.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for index := 0; index < load.connections; index++ {
		descriptor, err := connect(load.address)
		if err != nil {
			return err
		}
		load.sockets = append(load.sockets, socket{descriptor: descriptor, in: make([]byte, readBytes)})
		load.free = append(load.free, index)
		if err := load.watch(descriptor, int32(index)); err != nil {
			return err
		}
	}
	if load.perSecond == 0 {
		return nil
	}
	if load.timer, err = newTimer(time.Second / time.Duration(load.perSecond)); err != nil {
		return err
	}
	return load.watch(load.timer, timerPlace)
}

func (load *load) watch(descriptor int, place int32) error {
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: place}
	return syscall.EpollCtl(load.epoll, syscall.EPOLL_CTL_ADD, descriptor, &event)
}

func (load *load) send(now time.Time) error {
	index := load.free[len(load.free)-1]
	load.free = load.free[:len(load.free)-1]
	socket := &load.sockets[index]
	socket.number, socket.sent, socket.filled = load.asked, now, 0
	load.asked++
	load.waiting++
	load.request = load.render(load.request[:0], socket.number, now)
	written, err := syscall.Write(socket.descriptor, load.request)
	if err != nil {
		return fmt.Errorf("sending to %s: %w", load.address, err)
	}
	if written < len(load.request) {
		// The answer to everything before it was read: a socket without space for one small request is broken.
		return fmt.Errorf("%s accepts no more requests", load.address)
	}
	return nil
}

func (load *load) read(index int) error {
	socket := &load.sockets[index]
	count, err := syscall.Read(socket.descriptor, socket.in[socket.filled:])
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
		return nil
	}
	if err != nil || count == 0 {
		return fmt.Errorf("%s closed a connection (%v)", load.address, err)
	}
	socket.filled += count
	length, err := load.answer(socket.in[:socket.filled])
	if err != nil {
		return err
	}
	if length == 0 && socket.filled < len(socket.in) {
		return nil
	}
	if length != socket.filled {
		return fmt.Errorf("not one answer to one request: %q", socket.in[:socket.filled])
	}
	load.waiting--
	load.answered(socket.number, socket.sent, time.Now())
	load.free = append(load.free, index)
	return nil
}

func (load *load) tick() {
	var expirations [8]byte
	if count, err := syscall.Read(load.timer, expirations[:]); err == nil && count == len(expirations) {
		load.owed += *(*uint64)(unsafe.Pointer(&expirations[0]))
	}
}

func (load *load) close() {
	for _, socket := range load.sockets {
		syscall.Close(socket.descriptor)
	}
	if load.timer >= 0 {
		syscall.Close(load.timer)
	}
	syscall.Close(load.epoll)
}

// connect returns a non-blocking socket that sends without delay.
func connect(address string) (int, error) {
	resolved, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return 0, err
	}
	descriptor, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	to := &syscall.SockaddrInet4{Port: resolved.Port}
	copy(to.Addr[:], resolved.IP.To4())
	if err := syscall.Connect(descriptor, to); err != nil {
		syscall.Close(descriptor)
		return 0, fmt.Errorf("connecting to %s: %w", address, err)
	}
	if err := syscall.SetsockoptInt(descriptor, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1); err != nil {
		return 0, err
	}
	return descriptor, syscall.SetNonblock(descriptor, true)
}

// newTimer returns a descriptor that is readable once in every interval.
func newTimer(interval time.Duration) (int, error) {
	descriptor, _, failure := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockMonotonic, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if failure != 0 {
		return 0, failure
	}
	every := syscall.NsecToTimespec(int64(interval))
	times := [2]syscall.Timespec{every, every}
	_, _, failure = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, descriptor, 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0)
	if failure != 0 {
		return 0, failure
	}
	return int(descriptor), nil
}

func max(left, right int) int {
	if left > right {
		return left
	}
	return right
}
