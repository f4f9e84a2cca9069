package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	pollEvery = time.Millisecond
	// Maximum number of messages that one poll moves.
	pollLimit = 1000
	// Messages of one read, and its wait time for the first.
	streamReadLimit  = 1000
	streamReadWaitMs = 1000
	// Approximate number of messages that stay in the stream.
	streamLength = 100_000
	// Characters of an id: the length of a UUID.
	idCharacters = 36
)

var (
	//go:embed fire.lua
	fireScript string
	//go:embed hold.lua
	holdScript string
)

// redis holds in a sorted set by due time with the payloads in a hash, so that a hold can be extended and withdrawn by its id. A poller
// moves due messages to a stream every millisecond, where a consumer waits.
type redis struct {
	address string
	// Uses a script for a hold; otherwise MULTI, two commands and EXEC in one write.
	byScript bool

	set, hash, stream  string
	holdDigest, digest string
	held               int
}

func (redis *redis) prepare() error {
	prefix := fmt.Sprintf("whimbrel-compare-%d", os.Getpid())
	redis.set, redis.hash, redis.stream = prefix+":due", prefix+":payloads", prefix+":fired"
	return redis.talk(func(connection *respConnection) (err error) {
		if redis.digest, err = connection.text("SCRIPT", "LOAD", fireScript); err != nil {
			return err
		}
		redis.holdDigest, err = connection.text("SCRIPT", "LOAD", holdScript)
		return err
	})
}

func (redis *redis) remove() error {
	return redis.talk(func(connection *respConnection) error {
		_, err := connection.call("UNLINK", redis.set, redis.hash, redis.stream)
		return err
	})
}

func (*redis) delays() bool { return false }

func (redis *redis) ask(request, message []byte, _ time.Duration, due time.Time) []byte {
	redis.held++
	dueMs := strconv.FormatInt(due.UnixMilli(), 10)
	id := fmt.Sprintf("%0*d", idCharacters, redis.held)
	if redis.byScript {
		return appendCommand(request, "EVALSHA", redis.holdDigest, "2", redis.set, redis.hash, dueMs, id, string(message))
	}
	request = appendCommand(request, "MULTI")
	request = appendCommand(request, "ZADD", redis.set, dueMs, id)
	request = appendCommand(request, "HSET", redis.hash, id, string(message))
	return appendCommand(request, "EXEC")
}

var heldByTransaction = []byte("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:1\r\n")

func (redis *redis) answer(answer []byte) (int, error) {
	expected := heldByTransaction
	if redis.byScript {
		expected = heldByTransaction[len(heldByTransaction)-len(":1\r\n"):]
	}
	if !bytes.HasPrefix(expected, answer) {
		return 0, fmt.Errorf("redis rejected the hold: %s", bytes.TrimSpace(answer))
	}
	if len(answer) < len(expected) {
		return 0, nil
	}
	return len(answer), nil
}

func (redis *redis) consume(seen func(bytes []byte)) (*consumers, error) {
	working := &consumers{}
	err := working.add(redis.address, func(connection net.Conn) error { return redis.readStream(newResp(connection), seen) })
	if err == nil {
		err = working.add(redis.address, func(connection net.Conn) error { return redis.poll(newResp(connection), working) })
	}
	if err != nil {
		working.end()
	}
	return working, err
}

func (redis *redis) readStream(connection *respConnection, seen func(bytes []byte)) error {
	last := "0-0"
	for {
		answer, err := connection.call("XREAD", "COUNT", strconv.Itoa(streamReadLimit),
			"BLOCK", strconv.Itoa(streamReadWaitMs), "STREAMS", redis.stream, last)
		if err != nil {
			return err
		}
		if answer == nil {
			continue
		}
		entries, err := entriesOf(answer)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			seen([]byte(entry.payload))
			last = entry.id
		}
	}
}

// poll sleeps with a system call: the runtime's timers are no finer than the poller's interval.
func (redis *redis) poll(connection *respConnection, until *consumers) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	limit, length := strconv.Itoa(pollLimit), strconv.Itoa(streamLength)
	for next := time.Now(); !until.isEnded(); {
		now := time.Now()
		if wait := next.Sub(now); wait > 0 {
			pause := syscall.NsecToTimespec(int64(wait))
			// After an early wake-up by a signal it polls early, which is harmless.
			_ = syscall.Nanosleep(&pause, nil)
			now = time.Now()
		}
		next = now.Add(pollEvery)
		nowMs := strconv.FormatInt(now.UnixMilli(), 10)
		moved, err := connection.call("EVALSHA", redis.digest, "3", redis.set, redis.hash, redis.stream, nowMs, limit, length)
		if err != nil {
			return err
		}
		if count, isCount := moved.(int64); !isCount || count == pollLimit {
			// More messages are due.
			next = now
		}
	}
	return nil
}

func (redis *redis) talk(work func(connection *respConnection) error) error {
	connection, err := net.DialTimeout("tcp", redis.address, connectWait)
	if err != nil {
		return err
	}
	defer connection.Close()
	return work(newResp(connection))
}

type entry struct{ id, payload string }

// entriesOf parses XREAD's answer for one stream: [[stream, [[id, [field, value]], …]]].
func entriesOf(answer any) (found []entry, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("redis: cannot parse XREAD's answer")
		}
	}()
	for _, each := range answer.([]any)[0].([]any)[1].([]any) {
		pair := each.([]any)
		found = append(found, entry{pair[0].(string), pair[1].([]any)[1].(string)})
	}
	return found, nil
}

func appendCommand(to []byte, words ...string) []byte {
	to = append(strconv.AppendInt(append(to, '*'), int64(len(words)), 10), "\r\n"...)
	for _, word := range words {
		to = append(strconv.AppendInt(append(to, '$'), int64(len(word)), 10), "\r\n"...)
		to = append(append(to, word...), "\r\n"...)
	}
	return to
}

// respConnection speaks Redis' protocol, one command after another.
type respConnection struct {
	connection net.Conn
	answers    *bufio.Reader
	request    []byte
}

func newResp(connection net.Conn) *respConnection {
	return &respConnection{connection: connection, answers: bufio.NewReader(connection)}
}

// call returns a string, an int64, a list of these, or nil.
func (resp *respConnection) call(words ...string) (any, error) {
	resp.request = appendCommand(resp.request[:0], words...)
	if _, err := resp.connection.Write(resp.request); err != nil {
		return nil, err
	}
	return resp.read()
}

func (resp *respConnection) text(words ...string) (string, error) {
	answer, err := resp.call(words...)
	text, isText := answer.(string)
	if err == nil && !isText {
		err = fmt.Errorf("redis: the answer to %s is not a string", words[0])
	}
	return text, err
}

func (resp *respConnection) read() (any, error) {
	line, err := resp.answers.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return nil, fmt.Errorf("redis: an empty line")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, fmt.Errorf("redis: %s", rest)
	}
	number, err := strconv.ParseInt(rest, 10, 64)
	if err != nil || kind == ':' {
		return number, err
	}
	if number < 0 {
		return nil, nil
	}
	if kind == '$' {
		text := make([]byte, number+2)
		_, err := io.ReadFull(resp.answers, text)
		return string(text[:number]), err
	}
	list := make([]any, number)
	for index := range list {
		if list[index], err = resp.read(); err != nil {
			return nil, err
		}
	}
	return list, nil
}
