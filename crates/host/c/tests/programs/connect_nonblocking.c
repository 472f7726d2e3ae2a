/*
 * connect_nonblocking ADDR PORT CLOSED_PORT
 *
 * The program connects to an echo server at ADDR PORT with a non-blocking socket.
 * It waits for the connection with poll() and select().
 * It then sends "hello" and reads the echo.
 * A connection to ADDR CLOSED_PORT must be refused.
 *
 * stdout: connect: in progress
 *         poll: writable
 *         SO_ERROR: 0
 *         select: writable, not readable
 *         getpeername: ADDR PORT
 *         getsockname: same family, a port of its own
 *         recv before the echo: would block
 *         echo: hello
 *         end: closed by the peer
 *         closed port: in progress
 *         closed port: Connection refused
 *
 * cc -std=gnu11 -Wall -Wextra -Werror -O1 -o connect_nonblocking connect_nonblocking.c
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/select.h>

#include "common.h"

/* A non-blocking connect() starts the connection and does not wait for it. */
static int start_connect(const char *addr, const char *port)
{
    struct addrinfo *ai = resolve(addr, port, SOCK_STREAM);
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd == -1)
        die("socket");
    if (connect(fd, ai->ai_addr, ai->ai_addrlen) == 0)
        wrong("connect: it did not return EINPROGRESS");
    if (errno != EINPROGRESS)
        die("connect");
    freeaddrinfo(ai);
    return fd;
}

static void poll_for(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, 10000);
    if (n == -1)
        die("poll");
    if (n != 1)
        wrong("poll: nothing happened for 10 seconds");
    if ((p.revents & events) != events)
        wrong("poll: the event that it was asked for is missing");
}

static int socket_error(int fd)
{
    int error;
    socklen_t len = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == -1)
        die("getsockopt SO_ERROR");
    return error;
}

static void check_names(int fd)
{
    struct sockaddr_storage name;
    socklen_t len = sizeof name;
    char host[NI_MAXHOST], service[NI_MAXSERV];

    if (getpeername(fd, (struct sockaddr *)&name, &len) == -1)
        die("getpeername");
    int code = getnameinfo((struct sockaddr *)&name, len, host, sizeof host, service,
                           sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
    if (code != 0)
        wrong(gai_strerror(code));
    printf("getpeername: %s %s\n", host, service);

    sa_family_t family = name.ss_family;
    len = sizeof name;
    if (getsockname(fd, (struct sockaddr *)&name, &len) == -1)
        die("getsockname");
    code = getnameinfo((struct sockaddr *)&name, len, host, sizeof host, service,
                       sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
    if (code != 0)
        wrong(gai_strerror(code));
    if (name.ss_family != family || strcmp(service, "0") == 0)
        wrong("getsockname: the family differs from the peer's, or the port is 0");
    printf("getsockname: same family, a port of its own\n");
}

int main(int argc, char **argv)
{
    if (argc != 4)
        wrong("usage: connect_nonblocking ADDR PORT CLOSED_PORT");
    alarm(60);

    int fd = start_connect(argv[1], argv[2]);
    printf("connect: in progress\n");
    poll_for(fd, POLLOUT);
    printf("poll: writable\n");
    if ((errno = socket_error(fd)) != 0)
        die("connect");
    printf("SO_ERROR: 0\n");

    fd_set readable, writable;
    struct timeval wait = {.tv_sec = 10};
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(fd, &readable);
    FD_SET(fd, &writable);
    if (select(fd + 1, &readable, &writable, NULL, &wait) == -1)
        die("select");
    if (!FD_ISSET(fd, &writable) || FD_ISSET(fd, &readable))
        wrong("select: the socket is not writable, or is readable too early");
    printf("select: writable, not readable\n");
    check_names(fd);

    char echo[6] = "";
    if (recv(fd, echo, 5, MSG_DONTWAIT) != -1 || errno != EAGAIN)
        wrong("recv: it did not return EAGAIN before the echo");
    printf("recv before the echo: would block\n");
    if (send(fd, "hello", 5, MSG_NOSIGNAL) != 5)
        die("send");
    for (size_t done = 0; done < 5;) {
        poll_for(fd, POLLIN);
        ssize_t n = recv(fd, echo + done, 5 - done, MSG_DONTWAIT);
        if (n == 0)
            wrong("recv: the peer closed the connection before the echo");
        if (n == -1 && errno != EAGAIN)
            die("recv");
        done += n > 0 ? n : 0;
    }
    printf("echo: %s\n", echo);
    if (shutdown(fd, SHUT_WR) == -1)
        die("shutdown");
    poll_for(fd, POLLIN);
    if (recv(fd, echo, 5, MSG_DONTWAIT) != 0)
        wrong("recv: the peer did not end the stream");
    printf("end: closed by the peer\n");
    if (close(fd) == -1)
        die("close");

    fd = start_connect(argv[1], argv[3]);
    printf("closed port: in progress\n");
    poll_for(fd, POLLOUT);
    int error = socket_error(fd);
    printf("closed port: %s\n", strerror(error));
    if (error != ECONNREFUSED)
        wrong("connect: the closed port did not refuse");
    if (close(fd) == -1)
        die("close");
    return 0;
}
