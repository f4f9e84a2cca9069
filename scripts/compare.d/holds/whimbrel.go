package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

const (
	topic = "compare-holds"
	// The default number of partitions of a topic: a connection of its own reads each.
	partitions  = 4
	readLimit   = 1000
	readWait    = "2s"
	rfc3339Ms   = "2006-01-02T15:04:05.000Z"
	closingHead = "connection: close\r\n"
)

// whimbrel holds with an ordinary publish that has a due time. Its consumers are reads that wait at the end of each partition.
type whimbrel struct{ address string }

func (whimbrel *whimbrel) prepare() error {
	body := fmt.Sprintf(`{"partitions":%d}`, partitions)
	request := fmt.Sprintf("PUT /v1/topics/%s HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n%s",
		topic, whimbrel.address, len(body), closingHead, body)
	connection, err := net.DialTimeout("tcp", whimbrel.address, connectWait)
	if err != nil {
		return err
	}
	defer connection.Close()
	if _, err := io.WriteString(connection, request); err != nil {
		return err
	}
	_, err = readAnswer(bufio.NewReader(connection), nil)
	return err
}

func (*whimbrel) remove() error { return nil }

func (*whimbrel) delays() bool { return false }

func (whimbrel *whimbrel) ask(request, message []byte, _ time.Duration, due time.Time) []byte {
	request = append(request, "POST /v1/topics/"+topic+"/messages HTTP/1.1\r\nhost: "...)
	request = append(request, whimbrel.address...)
	request = append(request, "\r\ncontent-type: text/plain\r\nwhimbrel-deliver-at: "...)
	request = due.UTC().AppendFormat(request, rfc3339Ms)
	request = append(request, "\r\ncontent-length: "...)
	request = strconv.AppendInt(request, int64(len(message)), 10)
	request = append(request, "\r\n\r\n"...)
	return append(request, message...)
}

var (
	accepted      = []byte("HTTP/1.1 202 ")
	contentLength = []byte("\r\ncontent-length: ")
	headEnd       = []byte("\r\n\r\n")
)

func (*whimbrel) answer(answer []byte) (int, error) {
	end := bytes.Index(answer, headEnd)
	if end < 0 {
		return 0, nil
	}
	if !bytes.HasPrefix(answer, accepted) {
		return 0, fmt.Errorf("whimbrel rejected the hold: %s", answer)
	}
	at := bytes.Index(answer[:end], contentLength)
	if at < 0 {
		return 0, fmt.Errorf("whimbrel: an answer without its length: %s", answer[:end])
	}
	length := 0
	for _, digit := range answer[at+len(contentLength) : end] {
		if digit < '0' || digit > '9' {
			break
		}
		length = length*10 + int(digit-'0')
	}
	if whole := end + len(headEnd) + length; len(answer) >= whole {
		return whole, nil
	}
	return 0, nil
}

func (whimbrel *whimbrel) consume(seen func(bytes []byte)) (*consumers, error) {
	working := &consumers{}
	for partition := 0; partition < partitions; partition++ {
		partition := partition
		err := working.add(whimbrel.address, func(connection net.Conn) error { return whimbrel.read(connection, partition, seen) })
		if err != nil {
			working.end()
			return nil, err
		}
	}
	return working, nil
}

func (whimbrel *whimbrel) read(connection net.Conn, partition int, seen func(bytes []byte)) error {
	answers := bufio.NewReaderSize(connection, readBytes)
	var page []byte
	for offset := "earliest"; ; {
		_, err := fmt.Fprintf(connection, "GET /v1/topics/%s/messages?partition=%d&offset=%s&limit=%d&wait=%s HTTP/1.1\r\nhost: %s\r\n\r\n",
			topic, partition, offset, readLimit, readWait, whimbrel.address)
		if err != nil {
			return err
		}
		if page, err = readAnswer(answers, page[:0]); err != nil {
			return err
		}
		seen(page)
		var place struct {
			Next *int64 `json:"next_offset"`
		}
		if err := json.Unmarshal(page, &place); err != nil || place.Next == nil {
			return fmt.Errorf("whimbrel: a page without its next offset: %.200s", page)
		}
		offset = strconv.FormatInt(*place.Next, 10)
	}
}

// readAnswer reads one answer with a length and appends its body.
func readAnswer(from *bufio.Reader, body []byte) ([]byte, error) {
	lines := textproto.NewReader(from)
	status, err := lines.ReadLine()
	if err != nil {
		return nil, err
	}
	head, err := lines.ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	length, err := strconv.Atoi(head.Get("content-length"))
	if err != nil {
		return nil, fmt.Errorf("whimbrel: an answer without its length: %s", status)
	}
	if cap(body) < length {
		body = make([]byte, 0, length)
	}
	body = body[:length]
	if _, err := io.ReadFull(from, body); err != nil {
		return nil, err
	}
	if fields := strings.Fields(status); len(fields) < 2 || !strings.HasPrefix(fields[1], "2") {
		return nil, fmt.Errorf("whimbrel rejected the read: %s %s", status, body)
	}
	return body, nil
}
