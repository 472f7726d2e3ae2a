/* What the programs share: the ends of a program with a message, sockets by address, and the pattern of payload. */
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ends the program: `call` has failed, and errno says why. */
static inline _Noreturn void die(const char *call)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, call, strerror(errno));
    exit(1);
}

/* Ends the program: a call has done what it must not do. */
static inline _Noreturn void wrong(const char *what)
{
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(1);
}

/* The byte of the payload at an offset. */
static inline unsigned char pattern(size_t i)
{
    return (i * 31 + i / 4096) & 255;
}

/* The address; `type` is a kind of socket. The caller frees it. */
static inline struct addrinfo *resolve(const char *addr, const char *port, int type)
{
    struct addrinfo hints = {.ai_socktype = type & 0xf, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *ai;
    int code = getaddrinfo(addr, port, &hints, &ai);
    if (code != 0)
        wrong(gai_strerror(code));
    return ai;
}

/* A socket that is connected. */
static inline int connect_to(const char *addr, const char *port, int type)
{
    struct addrinfo *ai = resolve(addr, port, type);
    int fd = socket(ai->ai_family, type, 0);
    if (fd == -1)
        die("socket");
    if (connect(fd, ai->ai_addr, ai->ai_addrlen) == -1)
        die("connect");
    freeaddrinfo(ai);
    return fd;
}

/* A socket with the address; of TCP, one that listens. `type` may have SOCK_NONBLOCK and SOCK_CLOEXEC. */
static inline int serve_on(const char *addr, const char *port, int type)
{
    struct addrinfo *ai = resolve(addr, port, type);
    int fd = socket(ai->ai_family, type, 0), one = 1;
    if (fd == -1)
        die("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == -1)
        die("setsockopt SO_REUSEADDR");
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) == -1)
        die("bind");
    if (ai->ai_socktype == SOCK_STREAM && listen(fd, 128) == -1)
        die("listen");
    freeaddrinfo(ai);
    return fd;
}
