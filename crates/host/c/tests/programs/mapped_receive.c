/*
 * mapped_receive ADDR PORT
 *
 * The program listens on ADDR PORT and accepts one connection.
 * It maps what it can with TCP_ZEROCOPY_RECEIVE and receives the rest with recv().
 * It checks the pattern that zerocopy_send sends.
 * A stack that maps nothing still serves the program: recv() then does all of the work.
 *
 * stdout: listening
 *         received BYTES, pattern ok
 * stderr: mapped N bytes (this varies).
 *
 * cc -std=gnu11 -Wall -Wextra -Werror -O1 -o mapped_receive mapped_receive.c
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>

#include "common.h"

#define MAP_BYTES (2 * 1024 * 1024)

static size_t received; /* bytes of the stream that the program has checked */

static void check(const unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n; i++, received++) {
        if (data[i] != pattern(received)) {
            fprintf(stderr, "mapped_receive: byte %zu breaks the pattern\n", received);
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    static unsigned char buffer[64 * 1024];
    size_t mapped = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: mapped_receive ADDR PORT\n");
        return 1;
    }
    alarm(60);
    int listener = serve_on(argv[1], argv[2], SOCK_STREAM);
    printf("listening\n");
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    if (fd == -1)
        die("accept");
    if (close(listener) == -1)
        die("close listener");

    void *map = mmap(NULL, MAP_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        fprintf(stderr, "mapped_receive: mmap: %s; recv() does the work\n", strerror(errno));

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, -1) == -1)
            die("poll");

        size_t want = sizeof buffer;
        if (map != MAP_FAILED) {
            struct tcp_zerocopy_receive zc = {.address = (uintptr_t)map, .length = MAP_BYTES};
            socklen_t len = sizeof zc;
            if (getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &zc, &len) == -1) {
                /* EIO says that the stream has ended.  recv() below says so too. */
                if (errno != EIO) {
                    fprintf(stderr, "mapped_receive: TCP_ZEROCOPY_RECEIVE: %s; "
                            "recv() does the work\n", strerror(errno));
                    if (munmap(map, MAP_BYTES) == -1)
                        die("munmap");
                    map = MAP_FAILED;
                }
                zc.length = zc.recv_skip_hint = 0;
            }
            if (zc.length > 0) {
                check(map, zc.length);
                mapped += zc.length;
                if (madvise(map, zc.length, MADV_DONTNEED) == -1)
                    die("madvise");
                if (zc.recv_skip_hint == 0)
                    continue;
            }
            /* recv_skip_hint counts the next bytes that cannot be mapped. */
            if (zc.recv_skip_hint > 0 && zc.recv_skip_hint < want)
                want = zc.recv_skip_hint;
        }
        ssize_t n = recv(fd, buffer, want, MSG_DONTWAIT);
        if (n == 0)
            break;
        if (n == -1 && errno != EAGAIN)
            die("recv");
        if (n > 0)
            check(buffer, n);
    }

    if (map != MAP_FAILED && munmap(map, MAP_BYTES) == -1)
        die("munmap");
    if (close(fd) == -1)
        die("close");
    fprintf(stderr, "mapped_receive: mapped %zu bytes\n", mapped);
    printf("received %zu, pattern ok\n", received);
    return 0;
}
