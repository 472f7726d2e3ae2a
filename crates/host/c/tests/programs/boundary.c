/*
 * boundary [ADDR]
 *
 * The program checks what Linux's manual pages promise at the edges of the socket calls.
 * It connects to itself over ADDR, an address of its own stack (127.0.0.1 by default).
 * It needs no other host.
 *
 * stdout: one line "ok NAME" for each check in the table at the end.
 * stderr: the line number of the check that fails.
 *
 * cc -std=gnu11 -Wall -Wextra -Werror -O1 -pthread -o boundary boundary.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define OK(condition) check((condition), __LINE__, #condition)
#define FAILS(call, error) OK((errno = 0, (call) == -1 && errno == (error)))

static struct sockaddr_storage own, foreign; /* both with the port 0 */
static socklen_t addrlen;

static void check(int condition, int line, const char *text)
{
    if (condition)
        return;
    fprintf(stderr, "boundary: line %d: %s: %s\n", line, text, strerror(errno));
    exit(1);
}

static int new_socket(int type)
{
    int fd = socket(own.ss_family, type, 0);
    OK(fd >= 0);
    return fd;
}

static int new_listener(struct sockaddr_storage *name)
{
    int fd = new_socket(SOCK_STREAM);
    socklen_t len = sizeof *name;
    OK(bind(fd, (struct sockaddr *)&own, addrlen) == 0);
    OK(listen(fd, 8) == 0);
    OK(getsockname(fd, (struct sockaddr *)name, &len) == 0 && len == addrlen);
    return fd;
}

/* The two ends of one connection: pair[0] connected and pair[1] was accepted. */
static void new_pair(int pair[2])
{
    struct sockaddr_storage name;
    int listener = new_listener(&name);
    pair[0] = new_socket(SOCK_STREAM);
    OK(connect(pair[0], (struct sockaddr *)&name, addrlen) == 0);
    pair[1] = accept(listener, NULL, NULL);
    OK(pair[1] >= 0);
    OK(close(listener) == 0);
}

static void close_both(int pair[2])
{
    OK(close(pair[0]) == 0 && close(pair[1]) == 0);
}

static int is_type(int fd, mode_t type)
{
    struct stat st;
    OK(fstat(fd, &st) == 0);
    return (st.st_mode & S_IFMT) == type;
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t len = sizeof value;
    OK(getsockopt(fd, level, name, &value, &len) == 0 && len == sizeof value);
    return value;
}

static void bad_descriptors(void)
{
    char byte = 0;
    struct epoll_event event = {.events = EPOLLIN};
    int epoll = epoll_create1(0), closed = new_socket(SOCK_STREAM), fds[] = {-1, closed};
    OK(epoll >= 0 && close(closed) == 0);
    for (int i = 0; i < 2; i++) {
        FAILS(read(fds[i], &byte, 1), EBADF);
        FAILS(write(fds[i], &byte, 1), EBADF);
        FAILS(send(fds[i], &byte, 1, MSG_NOSIGNAL), EBADF);
        FAILS(accept(fds[i], NULL, NULL), EBADF);
        FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event), EBADF);
        FAILS(epoll_ctl(fds[i], EPOLL_CTL_ADD, epoll, &event), EBADF);
        FAILS(dup(fds[i]), EBADF);
        FAILS(close(fds[i]), EBADF);
    }
    OK(close(epoll) == 0);
}

static void not_a_socket(void)
{
    int ends[2];
    OK(pipe(ends) == 0);
    FAILS(send(ends[1], "x", 1, MSG_NOSIGNAL), ENOTSOCK);
    FAILS(listen(ends[0], 1), ENOTSOCK);
    FAILS(accept(ends[0], NULL, NULL), ENOTSOCK);
    close_both(ends);
}

static void unconnected(void)
{
    char byte;
    int s = new_socket(SOCK_STREAM), u = new_socket(SOCK_DGRAM);
    struct sockaddr_storage name;
    socklen_t len = sizeof name;
    FAILS(accept(s, NULL, NULL), EINVAL); /* It does not listen. */
    FAILS(send(s, "x", 1, MSG_NOSIGNAL), EPIPE);
    FAILS(recv(s, &byte, 1, 0), ENOTCONN);
    FAILS(shutdown(s, SHUT_RDWR), ENOTCONN);
    FAILS(getpeername(s, (struct sockaddr *)&name, &len), ENOTCONN);
    FAILS(send(u, "x", 1, 0), EDESTADDRREQ);
    FAILS(accept(u, NULL, NULL), EOPNOTSUPP);
    FAILS(listen(u, 1), EOPNOTSUPP);
    OK(close(s) == 0 && close(u) == 0);
}

static void binding(void)
{
    struct sockaddr_storage name;
    int s = new_socket(SOCK_STREAM), listener = new_listener(&name);
    FAILS(bind(s, (struct sockaddr *)&foreign, addrlen), EADDRNOTAVAIL);
    FAILS(bind(s, (struct sockaddr *)&name, addrlen), EADDRINUSE);
    FAILS(bind(s, (struct sockaddr *)&own, 1), EINVAL);
    FAILS(bind(listener, (struct sockaddr *)&own, addrlen), EINVAL); /* It is bound. */
    OK(close(s) == 0 && close(listener) == 0);
}

static void options(void)
{
    int s = new_socket(SOCK_STREAM), u = new_socket(SOCK_DGRAM), one = 1;
    struct timeval limit = {.tv_sec = 2, .tv_usec = 500000}, back = {0};
    socklen_t len = sizeof back;
    FAILS(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, 1), EINVAL);
    FAILS(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, 1), EINVAL);
    FAILS(setsockopt(s, SOL_SOCKET, 9999, &one, sizeof one), ENOPROTOOPT);
    OK(option(s, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
    OK(option(u, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
    OK(option(s, SOL_SOCKET, SO_ERROR) == 0);
    OK(option(s, SOL_SOCKET, SO_REUSEADDR) == 0);
    OK(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    OK(option(s, SOL_SOCKET, SO_REUSEADDR) == 1);
    OK(option(s, IPPROTO_TCP, TCP_NODELAY) == 0);
    OK(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    OK(option(s, IPPROTO_TCP, TCP_NODELAY) == 1);
    OK(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    OK(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &back, &len) == 0 && len == sizeof back);
    OK(back.tv_sec == 2 && back.tv_usec == 500000);
    OK(close(s) == 0 && close(u) == 0);
}

static void nonblocking(void)
{
    struct sockaddr_storage name;
    int listener = new_listener(&name), ends[2];
    int s = new_socket(SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC);
    char byte;
    OK((fcntl(s, F_GETFL) & O_NONBLOCK) != 0 && fcntl(s, F_GETFD) == FD_CLOEXEC);
    FAILS(recv(s, &byte, 1, 0), EAGAIN);
    OK((fcntl(listener, F_GETFL) & O_NONBLOCK) == 0);
    OK(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    OK((fcntl(listener, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == (O_NONBLOCK | O_RDWR));
    FAILS(accept(listener, NULL, NULL), EAGAIN);
    OK(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    FAILS(read(ends[0], &byte, 1), EAGAIN);
    close_both(ends);
    OK(close(s) == 0 && close(listener) == 0);
}

/* A duplicate shares the file status flags and outlives the original. */
static void duplicate(int fd, mode_t type)
{
    int copy = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 100), target = dup(copy);
    OK(copy >= 0 && high >= 100 && target >= 0);
    OK(fcntl(copy, F_GETFD) == 0 && fcntl(high, F_GETFD) == FD_CLOEXEC);
    OK(dup2(fd, fd) == fd);
    OK(dup3(fd, target, O_CLOEXEC) == target && fcntl(target, F_GETFD) == FD_CLOEXEC);
    OK(dup2(fd, target) == target && fcntl(target, F_GETFD) == 0);
    FAILS(dup3(fd, fd, 0), EINVAL);
    FAILS(dup2(-1, target), EBADF);
    FAILS(dup2(fd, -1), EBADF);
    OK(fcntl(copy, F_SETFL, O_NONBLOCK) == 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    OK(close(fd) == 0);
    OK(is_type(copy, type) && is_type(high, type) && is_type(target, type));
    OK(close(copy) == 0 && close(high) == 0 && close(target) == 0);
}

static void duplicates(void)
{
    int ends[2], pair[2];
    char byte;
    duplicate(new_socket(SOCK_STREAM), S_IFSOCK);
    OK(pipe(ends) == 0);
    duplicate(ends[1], S_IFIFO);
    OK(read(ends[0], &byte, 1) == 0); /* Every write end is closed. */
    OK(close(ends[0]) == 0);
    new_pair(pair);
    int copy = dup(pair[0]);
    OK(copy >= 0 && close(pair[0]) == 0);
    OK(write(copy, "x", 1) == 1 && read(pair[1], &byte, 1) == 1 && byte == 'x');
    OK(close(copy) == 0);
    OK(read(pair[1], &byte, 1) == 0); /* The last close ends the stream. */
    OK(close(pair[1]) == 0);
}

static void pipe_over_socket(void)
{
    int ends[2], pair[2];
    char byte;
    OK(pipe(ends) == 0);
    new_pair(pair);
    OK(dup2(ends[1], pair[0]) == pair[0] && is_type(pair[0], S_IFIFO));
    OK(read(pair[1], &byte, 1) == 0); /* dup2() closed the socket. */
    OK(write(pair[0], "p", 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == 'p');
    FAILS(send(pair[0], "p", 1, MSG_NOSIGNAL), ENOTSOCK);
    close_both(pair);
    close_both(ends);
}

static void socket_over_pipe(void)
{
    int ends[2], pair[2];
    char byte;
    OK(pipe(ends) == 0);
    new_pair(pair);
    OK(dup2(pair[0], ends[1]) == ends[1] && is_type(ends[1], S_IFSOCK));
    OK(read(ends[0], &byte, 1) == 0); /* dup2() closed the only write end. */
    OK(close(pair[0]) == 0);
    OK(write(ends[1], "s", 1) == 1 && read(pair[1], &byte, 1) == 1 && byte == 's');
    OK(option(ends[1], SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
    OK(close(pair[1]) == 0);
    close_both(ends);
}

static void polling(void)
{
    int ends[2], pair[2], closed = new_socket(SOCK_STREAM);
    OK(pipe(ends) == 0);
    new_pair(pair);
    OK(close(closed) == 0);
    struct pollfd p[] = {{closed, POLLIN, 0}, {-1, POLLIN, 9}, {ends[0], POLLIN, 0},
                         {pair[0], POLLIN | POLLOUT, 0}, {pair[1], POLLIN, 0}};
    OK(poll(p, 5, 0) == 2);
    OK(p[0].revents == POLLNVAL && p[1].revents == 0 && p[2].revents == 0);
    OK(p[3].revents == POLLOUT && p[4].revents == 0);
    OK(write(ends[1], "x", 1) == 1 && send(pair[0], "x", 1, 0) == 1);
    OK(poll(p + 4, 1, 5000) == 1 && p[4].revents == POLLIN);
    OK(poll(p + 2, 3, 0) == 3 && p[2].revents == POLLIN && p[4].revents == POLLIN);
    close_both(pair);
    close_both(ends);
}

static void epoll_sets(void)
{
    struct epoll_event event = {.events = EPOLLIN}, got[4];
    int epoll = epoll_create1(0), ends[2], pair[2];
    FILE *file = tmpfile();
    OK(epoll >= 0 && file != NULL && pipe(ends) == 0);
    new_pair(pair);
    int fds[] = {pair[1], ends[0]};
    for (int i = 0; i < 2; i++) {
        event.data.fd = fds[i];
        FAILS(epoll_ctl(epoll, EPOLL_CTL_MOD, fds[i], &event), ENOENT);
        FAILS(epoll_ctl(epoll, EPOLL_CTL_DEL, fds[i], NULL), ENOENT);
        OK(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) == 0);
        FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event), EEXIST);
    }
    FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, epoll, &event), EINVAL);
    FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, fileno(file), &event), EPERM);
    FAILS(epoll_wait(epoll, got, 0, 0), EINVAL);
    OK(epoll_wait(epoll, got, 4, 0) == 0);
    OK(write(ends[1], "x", 1) == 1);
    OK(epoll_wait(epoll, got, 4, 5000) == 1 && got[0].data.fd == ends[0]);
    OK(epoll_ctl(epoll, EPOLL_CTL_DEL, ends[0], NULL) == 0);
    OK(send(pair[0], "x", 1, 0) == 1);
    OK(epoll_wait(epoll, got, 4, 5000) == 1 && got[0].data.fd == pair[1]);
    close_both(pair); /* A close removes the socket from the set. */
    OK(epoll_wait(epoll, got, 4, 0) == 0);
    close_both(ends);
    OK(fclose(file) == 0 && close(epoll) == 0);
}

static void echo_and_half_close(void)
{
    int pair[2];
    char text[8] = "";
    struct sockaddr_storage name;
    socklen_t len = sizeof name;
    new_pair(pair);
    OK(getpeername(pair[0], (struct sockaddr *)&name, &len) == 0 && len == addrlen);
    FAILS(connect(pair[0], (struct sockaddr *)&name, addrlen), EISCONN);
    OK(send(pair[0], "hello", 5, 0) == 5);
    OK(recv(pair[1], text, 1, MSG_PEEK) == 1 && text[0] == 'h');
    OK(recv(pair[1], text, 5, MSG_WAITALL) == 5 && memcmp(text, "hello", 5) == 0);
    OK(send(pair[1], text, 5, 0) == 5);
    OK(recv(pair[0], text, 5, MSG_WAITALL) == 5 && memcmp(text, "hello", 5) == 0);
    OK(shutdown(pair[0], SHUT_WR) == 0);
    OK(recv(pair[1], text, sizeof text, 0) == 0);
    FAILS(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    OK(send(pair[1], "bye", 3, 0) == 3); /* The other direction is still open. */
    OK(recv(pair[0], text, 3, MSG_WAITALL) == 3 && memcmp(text, "bye", 3) == 0);
    close_both(pair);
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    signals += number == SIGPIPE;
}

static void broken_pipe_signal(void)
{
    int pair[2];
    struct sigaction action = {.sa_handler = count_signal}, before;
    OK(sigaction(SIGPIPE, &action, &before) == 0);
    new_pair(pair);
    OK(shutdown(pair[0], SHUT_WR) == 0);
    FAILS(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    OK(signals == 0);
    FAILS(write(pair[0], "x", 1), EPIPE);
    OK(signals == 1);
    OK(sigaction(SIGPIPE, &before, NULL) == 0);
    close_both(pair);
}

static void reset(void)
{
    int pair[2];
    char byte;
    struct linger abort = {.l_onoff = 1, .l_linger = 0};
    new_pair(pair);
    OK(setsockopt(pair[1], SOL_SOCKET, SO_LINGER, &abort, sizeof abort) == 0);
    OK(close(pair[1]) == 0);
    FAILS(recv(pair[0], &byte, 1, 0), ECONNRESET);
    OK(recv(pair[0], &byte, 1, 0) == 0); /* The error is reported once. */
    FAILS(send(pair[0], "x", 1, MSG_NOSIGNAL), EPIPE);
    OK(close(pair[0]) == 0);
}

static void peek(void)
{
    int pair[2], waiting = 0;
    char text[4] = "";
    new_pair(pair);
    OK(send(pair[0], "abc", 3, 0) == 3);
    for (int i = 0; i < 2; i++) {
        OK(recv(pair[1], text, 3, MSG_PEEK | MSG_WAITALL) == 3 && memcmp(text, "abc", 3) == 0);
        OK(ioctl(pair[1], FIONREAD, &waiting) == 0 && waiting == 3);
    }
    OK(recv(pair[1], text, 3, 0) == 3 && memcmp(text, "abc", 3) == 0);
    FAILS(recv(pair[1], text, 3, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    close_both(pair);
}

static void vectors(void)
{
    int pair[2];
    char left[4] = "", right[8] = "";
    struct iovec out[] = {{"one", 3}, {"", 0}, {"two", 3}, {"four", 4}};
    struct iovec in[] = {{left, 4}, {right, 6}};
    new_pair(pair);
    OK(writev(pair[0], out, 4) == 10);
    OK(recv(pair[1], right, 8, MSG_PEEK | MSG_WAITALL) == 8); /* until it is there */
    ssize_t n = readv(pair[1], in, 2);
    OK(n >= 8 && memcmp(left, "onet", 4) == 0 && memcmp(right, "wofour", n - 4) == 0);
    close_both(pair);
}

static void *send_later(void *fd)
{
    usleep(50000);
    OK(send(*(int *)fd, "def", 3, 0) == 3);
    return NULL;
}

static void wait_for_all(void)
{
    int pair[2];
    char text[6];
    pthread_t thread;
    new_pair(pair);
    OK(send(pair[0], "abc", 3, 0) == 3);
    OK(pthread_create(&thread, NULL, send_later, &pair[0]) == 0);
    OK(recv(pair[1], text, 6, MSG_WAITALL) == 6 && memcmp(text, "abcdef", 6) == 0);
    OK(pthread_join(thread, NULL) == 0);
    close_both(pair);
}

static void receive_timeout(void)
{
    int pair[2];
    char byte;
    struct timeval limit = {.tv_usec = 100000};
    struct timespec from, to;
    new_pair(pair);
    OK(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    OK(clock_gettime(CLOCK_MONOTONIC, &from) == 0);
    FAILS(recv(pair[0], &byte, 1, 0), EAGAIN);
    OK(clock_gettime(CLOCK_MONOTONIC, &to) == 0);
    OK((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000 >= 90);
    close_both(pair);
}

static void send_file(void)
{
    static char data[8192], back[8000];
    int pair[2];
    off_t offset = 100;
    FILE *file = tmpfile();
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = i * 31 + i / 4096;
    OK(file != NULL && write(fileno(file), data, sizeof data) == sizeof data);
    new_pair(pair);
    for (ssize_t n; offset < 8100; OK(n > 0))
        n = sendfile(pair[0], fileno(file), &offset, 8100 - offset);
    OK(offset == 8100 && lseek(fileno(file), 0, SEEK_CUR) == sizeof data);
    OK(recv(pair[1], back, 8000, MSG_WAITALL) == 8000 && memcmp(back, data + 100, 8000) == 0);
    OK(sendfile(pair[0], fileno(file), NULL, 10) == 0); /* The file's offset is at its end. */
    close_both(pair);
    OK(fclose(file) == 0);
}

static void datagrams(void)
{
    static char large[70000];
    int s = new_socket(SOCK_DGRAM);
    char text[3] = "";
    struct sockaddr_storage name, from;
    socklen_t len = sizeof name, fromlen = sizeof from;
    OK(bind(s, (struct sockaddr *)&own, addrlen) == 0);
    OK(getsockname(s, (struct sockaddr *)&name, &len) == 0);
    FAILS(sendto(s, large, sizeof large, 0, (struct sockaddr *)&name, len), EMSGSIZE);
    OK(sendto(s, "hello", 5, 0, (struct sockaddr *)&name, len) == 5);
    OK(sendto(s, NULL, 0, 0, (struct sockaddr *)&name, len) == 0);
    OK(recv(s, text, 3, MSG_TRUNC | MSG_PEEK) == 5);
    OK(recvfrom(s, text, 3, 0, (struct sockaddr *)&from, &fromlen) == 3);
    OK(memcmp(text, "hel", 3) == 0 && fromlen == len && memcmp(&from, &name, len) == 0);
    OK(recv(s, text, 3, 0) == 0); /* The rest is gone.  The empty datagram is next. */
    OK(close(s) == 0);
}

static void parse(const char *addr, struct sockaddr_storage *to)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST}, *ai;
    int code = getaddrinfo(addr, NULL, &hints, &ai);
    if (code != 0) {
        fprintf(stderr, "boundary: getaddrinfo: %s\n", gai_strerror(code));
        exit(1);
    }
    memcpy(to, ai->ai_addr, addrlen = ai->ai_addrlen);
    freeaddrinfo(ai);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } checks[] = {
        {"bad_descriptors", bad_descriptors}, {"not_a_socket", not_a_socket},
        {"unconnected", unconnected}, {"binding", binding}, {"options", options},
        {"nonblocking", nonblocking}, {"duplicates", duplicates},
        {"pipe_over_socket", pipe_over_socket}, {"socket_over_pipe", socket_over_pipe},
        {"polling", polling}, {"epoll_sets", epoll_sets},
        {"echo_and_half_close", echo_and_half_close},
        {"broken_pipe_signal", broken_pipe_signal}, {"reset", reset}, {"peek", peek},
        {"vectors", vectors}, {"wait_for_all", wait_for_all},
        {"receive_timeout", receive_timeout}, {"send_file", send_file},
        {"datagrams", datagrams},
    };
    alarm(60);
    parse(argc > 1 ? argv[1] : "127.0.0.1", &own);
    parse(own.ss_family == AF_INET ? "203.0.113.77" : "2001:db8::77", &foreign);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        checks[i].run();
        printf("ok %s\n", checks[i].name);
        fflush(stdout);
    }
    return 0;
}
