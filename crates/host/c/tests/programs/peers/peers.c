/*
 * The kernel-side peers of the programs one folder up.
 *
 * peers echo ADDR PORT CONNECTIONS BYTES
 *     opens CONNECTIONS TCP connections, then sends BYTES over each and checks the echo.
 *     It sends as much as it can before it reads, so that the server's writes fill up.
 *     stdout: echoed BYTES over each of CONNECTIONS connections
 * peers datagrams ADDR PORT COUNT SIZE
 *     sends COUNT UDP datagrams of SIZE bytes (4 or more) and checks the answers.
 *     stdout: COUNT datagrams answered
 * peers segments ADDR PORT N SIZE
 *     sends the one datagram "segments N SIZE" and checks the N datagrams that come back.
 *     stdout: N segments of SIZE bytes
 * peers read ADDR PORT
 *     accepts one TCP connection, reads the pattern to the end of the stream, and closes.
 *     stdout: listening
 *             received BYTES, pattern ok
 * peers send ADDR PORT BYTES
 *     connects by TCP, sends BYTES of the pattern, and waits for the peer's close.
 *     stdout: sent BYTES
 *
 * Nothing is sent twice: a datagram lost on the way is an error after 5 seconds.
 *
 * cc -std=gnu11 -Wall -Wextra -Werror -O1 -o peers peers.c
 */
#define _GNU_SOURCE
#include <poll.h>

#include "../common.h"

static unsigned char buffer[64 * 1024];

static void expect_end(int fd)
{
    ssize_t n = recv(fd, buffer, 1, 0);
    if (n == -1)
        die("recv");
    if (n != 0)
        wrong("recv: data came where the end of the stream was due");
    if (close(fd) == -1)
        die("close");
}

/* The connection K carries the pattern from the offset K on. */
static void exchange(int fd, size_t k, size_t bytes)
{
    size_t sent = 0, checked = 0;
    while (checked < bytes) {
        while (sent < bytes) {
            size_t piece = bytes - sent < sizeof buffer ? bytes - sent : sizeof buffer;
            for (size_t i = 0; i < piece; i++)
                buffer[i] = pattern(k + sent + i);
            ssize_t n = send(fd, buffer, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n == -1 && errno == EAGAIN)
                break;
            if (n == -1)
                die("send");
            sent += n;
        }
        struct pollfd p = {.fd = fd, .events = POLLIN | (sent < bytes ? POLLOUT : 0)};
        if (poll(&p, 1, -1) == -1)
            die("poll");
        ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n == -1 && errno != EAGAIN)
            die("recv");
        if (n == 0)
            wrong("recv: the echo ended too early");
        for (ssize_t i = 0; i < n; i++, checked++) {
            if (checked >= sent || buffer[i] != pattern(k + checked))
                wrong("recv: the echo differs from what was sent");
        }
    }
    if (shutdown(fd, SHUT_WR) == -1)
        die("shutdown");
    expect_end(fd);
}

static void echo(const char *addr, const char *port, size_t connections, size_t bytes)
{
    int *fds = calloc(connections, sizeof *fds);
    if (fds == NULL)
        die("calloc");
    for (size_t k = 0; k < connections; k++)
        fds[k] = connect_to(addr, port, SOCK_STREAM);
    for (size_t k = 0; k < connections; k++)
        exchange(fds[k], k, bytes);
    free(fds);
    printf("echoed %zu over each of %zu connections\n", bytes, connections);
}

static size_t receive_datagram(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int ready = poll(&p, 1, 5000);
    if (ready == -1)
        die("poll");
    if (ready == 0)
        wrong("poll: no answer came within 5 seconds");
    ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n == -1)
        die("recv");
    return n;
}

/*
 * At most 8 datagrams are under way, and only one that is larger than 4096 bytes.
 * A socket's default buffer has room for them.  Their answers may come in any order.
 */
static void datagrams(const char *addr, const char *port, unsigned count, size_t size)
{
    if (size < sizeof count || size > sizeof buffer)
        wrong("datagrams: SIZE must be 4 or more, and at most 65507");
    unsigned window = size > 4096 ? 1 : 8;
    int fd = connect_to(addr, port, SOCK_DGRAM);
    unsigned char *seen = calloc(count, 1);
    if (seen == NULL)
        die("calloc");
    for (unsigned sent = 0, answered = 0; answered < count; answered++) {
        for (; sent < count && sent < answered + window; sent++) {
            memset(buffer, pattern(sent), size);
            memcpy(buffer, &sent, sizeof sent);
            if (send(fd, buffer, size, 0) == -1)
                die("send");
        }
        unsigned id;
        if (receive_datagram(fd) != size)
            wrong("recv: an answer has the wrong length");
        memcpy(&id, buffer, sizeof id);
        if (id >= sent || seen[id])
            wrong("recv: an answer came twice, or to no question");
        seen[id] = 1;
        for (size_t i = sizeof id; i < size; i++) {
            if (buffer[i] != pattern(id))
                wrong("recv: an answer differs from what was sent");
        }
    }
    free(seen);
    close(fd);
    printf("%u datagrams answered\n", count);
}

static void segments(const char *addr, const char *port, unsigned count, size_t size)
{
    unsigned char seen[256] = {0};
    char text[64];
    int fd = connect_to(addr, port, SOCK_DGRAM);
    int length = snprintf(text, sizeof text, "segments %u %zu", count, size);
    if (send(fd, text, length, 0) == -1)
        die("send");
    for (unsigned i = 0; i < count; i++) {
        if (receive_datagram(fd) != size)
            wrong("recv: a segment has the wrong length");
        if (buffer[0] >= count || seen[buffer[0]])
            wrong("recv: a segment came twice, or was not asked for");
        seen[buffer[0]] = 1;
        for (size_t j = 1; j < size; j++) {
            if (buffer[j] != buffer[0])
                wrong("recv: a segment's bytes differ");
        }
    }
    close(fd);
    printf("%u segments of %zu bytes\n", count, size);
}

static void read_pattern(const char *addr, const char *port)
{
    int listener = serve_on(addr, port, SOCK_STREAM);
    printf("listening\n");
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    if (fd == -1)
        die("accept");
    size_t received = 0;
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
        for (ssize_t i = 0; i < n; i++, received++) {
            if (buffer[i] != pattern(received))
                wrong("recv: the data breaks the pattern");
        }
    }
    if (n == -1)
        die("recv");
    if (close(fd) == -1 || close(listener) == -1)
        die("close");
    printf("received %zu, pattern ok\n", received);
}

static void send_pattern(const char *addr, const char *port, size_t bytes)
{
    int fd = connect_to(addr, port, SOCK_STREAM);
    for (size_t sent = 0; sent < bytes;) {
        size_t piece = bytes - sent < sizeof buffer ? bytes - sent : sizeof buffer;
        for (size_t i = 0; i < piece; i++)
            buffer[i] = pattern(sent + i);
        ssize_t n = send(fd, buffer, piece, MSG_NOSIGNAL);
        if (n == -1)
            die("send");
        sent += n;
    }
    if (shutdown(fd, SHUT_WR) == -1)
        die("shutdown");
    expect_end(fd);
    printf("sent %zu\n", bytes);
}

int main(int argc, char **argv)
{
    const char *what = argc > 3 ? argv[1] : "";
    size_t first = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;
    size_t second = argc > 5 ? strtoul(argv[5], NULL, 10) : 0;
    alarm(60);
    if (argc == 6 && strcmp(what, "echo") == 0)
        echo(argv[2], argv[3], first, second);
    else if (argc == 6 && strcmp(what, "datagrams") == 0)
        datagrams(argv[2], argv[3], first, second);
    else if (argc == 6 && strcmp(what, "segments") == 0)
        segments(argv[2], argv[3], first, second);
    else if (argc == 4 && strcmp(what, "read") == 0)
        read_pattern(argv[2], argv[3]);
    else if (argc == 5 && strcmp(what, "send") == 0)
        send_pattern(argv[2], argv[3], first);
    else
        wrong("usage: peers echo|datagrams|segments|read|send ADDR PORT ... (see peers.c)");
    return 0;
}
