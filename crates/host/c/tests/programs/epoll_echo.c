/*
 * epoll_echo ADDR PORT CONNECTIONS
 *
 * The program echoes what CONNECTIONS TCP connections send, with edge-triggered epoll.
 * An eventfd and a pipe share the epoll set with the sockets.
 * A thread writes to the eventfd and to the pipe three times each.
 * The program ends once every connection is closed and the thread's writes are read.
 *
 * stdout: listening
 *         echoed BYTES over CONNECTIONS connections
 *         eventfd 3
 *         pipe 3
 *
 * cc -std=gnu11 -Wall -Wextra -Werror -O1 -pthread -o epoll_echo epoll_echo.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "common.h"

struct connection {
    int fd;
    size_t start, end; /* buffer[start..end] waits for room in the socket */
    char buffer[16 * 1024];
};

static int epoll, counter, pipe_ends[2];
static unsigned long accepted, closed, echoed;

static void watch(int fd, uint32_t events, void *tag)
{
    struct epoll_event event = {.events = events, .data.ptr = tag};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == -1)
        die("epoll_ctl");
}

static void *write_thrice(void *unused)
{
    uint64_t one = 1;
    for (int i = 0; i < 3; i++) {
        usleep(10000);
        if (write(counter, &one, sizeof one) != sizeof one)
            die("write eventfd");
        if (write(pipe_ends[1], "x", 1) != 1)
            die("write pipe");
    }
    return unused;
}

/* An edge comes once.  The program therefore accepts until accept4() would block. */
static void accept_all(int listener, unsigned long connections)
{
    while (accepted < connections) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd == -1 && errno == EAGAIN)
            return;
        if (fd == -1)
            die("accept4");
        struct connection *c = malloc(sizeof *c);
        if (c == NULL)
            die("malloc");
        c->fd = fd;
        c->start = c->end = 0;
        accepted++;
        watch(fd, EPOLLIN | EPOLLOUT | EPOLLET, c);
    }
    if (close(listener) == -1)
        die("close listener");
}

/* The loop ends only where a call would block, for an edge comes once. */
static void serve(struct connection *c)
{
    for (;;) {
        ssize_t n;
        if (c->start < c->end) {
            n = send(c->fd, c->buffer + c->start, c->end - c->start, MSG_NOSIGNAL);
            if (n > 0) {
                c->start += n;
                echoed += n;
            }
        } else {
            n = recv(c->fd, c->buffer, sizeof c->buffer, 0);
            c->start = 0;
            c->end = n > 0 ? n : 0;
        }
        if (n == -1 && errno == EAGAIN)
            return;
        if (n == -1)
            die("send or recv");
        if (n == 0)
            break;
    }
    if (close(c->fd) == -1)
        die("close");
    free(c);
    closed++;
}

int main(int argc, char **argv)
{
    unsigned long connections = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
    if (connections == 0) {
        fprintf(stderr, "usage: epoll_echo ADDR PORT CONNECTIONS\n");
        return 1;
    }
    alarm(60);
    int listener = serve_on(argv[1], argv[2], SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC);
    if ((epoll = epoll_create1(EPOLL_CLOEXEC)) == -1)
        die("epoll_create1");
    if ((counter = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) == -1)
        die("eventfd");
    if (pipe2(pipe_ends, O_NONBLOCK | O_CLOEXEC) == -1)
        die("pipe2");
    watch(listener, EPOLLIN | EPOLLET, &listener);
    watch(counter, EPOLLIN, &counter);
    watch(pipe_ends[0], EPOLLIN, pipe_ends);
    printf("listening\n");
    fflush(stdout);
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, write_thrice, NULL)) != 0)
        die("pthread_create");

    uint64_t counted = 0, piped = 0, value;
    char bytes[8];
    while (closed < connections || counted < 3 || piped < 3) {
        struct epoll_event events[16];
        int ready = epoll_wait(epoll, events, 16, -1);
        if (ready == -1)
            die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            void *tag = events[i].data.ptr;
            if (tag == &listener) {
                accept_all(listener, connections);
            } else if (tag == &counter) {
                if (read(counter, &value, sizeof value) != sizeof value)
                    die("read eventfd");
                counted += value;
            } else if (tag == pipe_ends) {
                ssize_t n = read(pipe_ends[0], bytes, sizeof bytes);
                if (n <= 0)
                    die("read pipe");
                piped += n;
            } else {
                serve(tag);
            }
        }
    }
    if ((errno = pthread_join(thread, NULL)) != 0)
        die("pthread_join");
    printf("echoed %lu over %lu connections\n", echoed, accepted);
    printf("eventfd %lu\npipe %lu\n", (unsigned long)counted, (unsigned long)piped);
    return 0;
}
