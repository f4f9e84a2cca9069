package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

const (
	// Connections that wait for a job, each for one at a time: the protocol permits no more. beanstalkd serves its connections in turn, so
	// there are as many as those that put jobs: with fewer, consumers of a busy server would get a smaller share of it.
	reservers = 64
	// Time for which a job may be reserved: longer than a round, so that none is delivered twice.
	timeToRunS = 3600
)

// beanstalkd holds with the delay of `put`, in the default tube. The previous round must have left no jobs: deleting them would cost a
// sync each.
type beanstalkd struct {
	address string
	// A consumer deletes each of its jobs, the correct way; otherwise it keeps it reserved, which costs the server no sync.
	deletes bool
}

func (*beanstalkd) prepare() error { return nil }

func (*beanstalkd) delays() bool { return true }

func (*beanstalkd) remove() error { return nil }

func (*beanstalkd) ask(request, message []byte, delay time.Duration, _ time.Time) []byte {
	request = append(request, "put 0 "...)
	request = strconv.AppendInt(request, int64(delay/time.Second), 10)
	request = append(request, ' ')
	request = strconv.AppendInt(request, timeToRunS, 10)
	request = append(request, ' ')
	request = strconv.AppendInt(request, int64(len(message)), 10)
	request = append(request, "\r\n"...)
	request = append(request, message...)
	return append(request, "\r\n"...)
}

func (*beanstalkd) answer(answer []byte) (int, error) {
	end := bytes.IndexByte(answer, '\n')
	if end < 0 {
		return 0, nil
	}
	if !bytes.HasPrefix(answer, []byte("INSERTED ")) {
		return 0, fmt.Errorf("beanstalkd rejected the job: %s", bytes.TrimSpace(answer))
	}
	return end + 1, nil
}

func (beanstalkd *beanstalkd) consume(seen func(bytes []byte)) (*consumers, error) {
	working := &consumers{}
	for index := 0; index < reservers; index++ {
		err := working.add(beanstalkd.address, func(connection net.Conn) error { return beanstalkd.reserve(connection, seen) })
		if err != nil {
			working.end()
			return nil, err
		}
	}
	return working, nil
}

func (beanstalkd *beanstalkd) reserve(connection net.Conn, seen func(bytes []byte)) error {
	answers := bufio.NewReader(connection)
	job := make([]byte, payloadBytes+len("\r\n"))
	request := []byte("reserve\r\n")
	for {
		if _, err := connection.Write(request); err != nil {
			return err
		}
		line, err := answers.ReadString('\n')
		if err == nil && line == "DELETED\r\n" {
			line, err = answers.ReadString('\n')
		}
		if err != nil {
			return err
		}
		var id uint64
		var length int
		if _, err := fmt.Sscanf(line, "RESERVED %d %d\r\n", &id, &length); err != nil || length != payloadBytes {
			return fmt.Errorf("beanstalkd: not a job of this round: %q", line)
		}
		if _, err := io.ReadFull(answers, job); err != nil {
			return err
		}
		seen(job)
		request = request[:0]
		if beanstalkd.deletes {
			request = append(strconv.AppendUint(append(request, "delete "...), id, 10), "\r\n"...)
		}
		request = append(request, "reserve\r\n"...)
	}
}
