package main

import (
	"net"
	"sync"
	"time"
)

const connectWait = 5 * time.Second

// consumers are connections with a goroutine each, until they are stopped or one fails.
type consumers struct {
	lock  sync.Mutex
	done  sync.WaitGroup
	open  []net.Conn
	ended bool
	first error
}

// add connects and passes the connection to `work` until it returns.
func (consumers *consumers) add(address string, work func(connection net.Conn) error) error {
	connection, err := net.DialTimeout("tcp", address, connectWait)
	if err != nil {
		return err
	}
	consumers.lock.Lock()
	consumers.open = append(consumers.open, connection)
	consumers.lock.Unlock()
	consumers.done.Add(1)
	go func() {
		defer consumers.done.Done()
		err := work(connection)
		consumers.lock.Lock()
		defer consumers.lock.Unlock()
		// A connection that was closed during its work is no failure.
		if err != nil && !consumers.ended && consumers.first == nil {
			consumers.first = err
		}
	}()
	return nil
}

func (consumers *consumers) failure() error {
	consumers.lock.Lock()
	defer consumers.lock.Unlock()
	return consumers.first
}

func (consumers *consumers) isEnded() bool {
	consumers.lock.Lock()
	defer consumers.lock.Unlock()
	return consumers.ended
}

// end closes all connections, waits for their work, and returns the first failure from before.
func (consumers *consumers) end() error {
	consumers.lock.Lock()
	consumers.ended = true
	for _, connection := range consumers.open {
		connection.Close()
	}
	consumers.lock.Unlock()
	consumers.done.Wait()
	return consumers.failure()
}
