/*
 * corners
 *     checks corners of the library by its own names, over pairs: prints one line "ok NAME" for each.
 *
 * cc -std=gnu11 -Wall -Wextra -Werror -O1 -o corners corners.c -lpagewire
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pagewire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(what)                                                                         \
    do {                                                                                 \
        if (!(what)) {                                                                   \
            fprintf(stderr, "corners: line %d: %s: %s (%s)\n", __LINE__, #what, strerror(errno), pw_error()); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static int server, client;

static void connected(int pair[2], int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, "10.0.0.1", &at.sin_addr);
    int listener = pw_host_socket(server, AF_INET, SOCK_STREAM, 0);
    pair[0] = pw_host_socket(client, AF_INET, SOCK_STREAM, 0);
    OK(pw_bind(listener, (void *)&at, sizeof at) == 0 && pw_listen(listener, 8) == 0);
    OK(pw_connect(pair[0], (void *)&at, sizeof at) == 0);
    OK((pair[1] = pw_accept(listener, NULL, NULL)) >= 0);
    OK(pw_close(listener) == 0);
}

/* A pair's second end is kept when its network's text is wrong. */
static void failed_open(void)
{
    OK((server = pw_host_open("pair=lan,addr=10.0.0.1/24")) >= 0);
    OK(pw_host_open("pair=lan,addr=10.0.0.2") == -1 && errno == EINVAL);
    OK(strstr(pw_error(), "10.0.0.2") != NULL);
    OK((client = pw_host_open("pair=lan,addr=10.0.0.2/24")) >= 0);
    char byte;
    OK(pw_read(999, &byte, 1) == -1 && errno == EBADF && strcmp(pw_error(), "10.0.0.2") != 0);
    OK(strcmp(pw_errno_name(EBADF), "EBADF") == 0 && *pw_errno_name(100000) == 0);
}

/* Numbers of an instance that were made before its first member, and after. */
static void numbers_of_a_set(void)
{
    int pair[2], epoll = pw_epoll_create1(EPOLL_CLOEXEC), early = pw_dup(epoll), late, high;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, got[4];
    connected(pair, 9001);
    OK(pw_epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], &event) == 0);
    OK((late = pw_dup(epoll)) >= 0 && (high = pw_fcntl(early, F_DUPFD_CLOEXEC, 100)) >= 100);
    OK(pw_send(pair[0], "x", 1, 0) == 1);
    int numbers[] = {epoll, early, late, high};
    for (int i = 0; i < 4; i++) {
        struct pollfd kernel = {.fd = numbers[i], .events = POLLIN};
        OK(pw_epoll_wait(numbers[i], got, 4, 5000) == 1 && got[0].data.u64 == 7);
        OK(poll(&kernel, 1, 5000) == 1); /* The kernel's own poll: a level is still there. */
    }
    for (int i = 0; i < 4; i++)
        OK(pw_close(numbers[i]) == 0);
    OK(pw_close(pair[0]) == 0 && pw_close(pair[1]) == 0);
}

/* A file that is cut while its bytes wait for the peer. */
static void cut_file(void)
{
    int pair[2], file = memfd_create("file", 0);
    static char content[1 << 20], got[1 << 20];
    memset(content, 'f', sizeof content);
    OK(write(file, content, sizeof content) == sizeof content);
    connected(pair, 9002);
    OK(pw_fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0);
    off_t at = 100;
    ssize_t sent = pw_sendfile(pair[0], file, &at, sizeof content);
    OK(sent > 0 && at == 100 + sent && ftruncate(file, 0) == 0);
    OK(pw_recv(pair[1], got, sent, MSG_WAITALL) == sent);
    OK(memcmp(got, content, sent) == 0 && pw_sendfile(pair[0], file, NULL, 10) == 0);
    OK(pw_close(pair[0]) == 0 && pw_close(pair[1]) == 0 && close(file) == 0);
}

/* A child process has none of the parent's networks, and does the parent no harm. */
static void child(void)
{
    int pair[2], epoll = pw_epoll_create1(0), plain = pw_epoll_create1(0), status;
    struct epoll_event event = {.events = EPOLLIN}, got[4];
    connected(pair, 9003);
    OK(pw_epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], &event) == 0);
    pid_t pid = fork();
    OK(pid >= 0);
    if (pid == 0) {
        int fine = pw_epoll_wait(epoll, got, 4, 1000) == -1 && errno == ENETDOWN;
        fine = fine && pw_epoll_wait(plain, got, 4, 0) == 0;
        fine = fine && pw_send(pair[0], "x", 1, 0) == -1 && errno == ENETDOWN;
        fine = fine && pw_close(pair[0]) == 0 && pw_close(epoll) == 0;
        /* Networks of its own, by the same handles. */
        server = pw_host_open("pair=child,addr=10.0.0.1/24");
        client = pw_host_open("pair=child,addr=10.0.0.2/24");
        fine = fine && server >= 0 && client >= 0;
        connected(pair, 9005);
        fine = fine && (epoll = pw_epoll_create1(0)) >= 0;
        fine = fine && pw_epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], &event) == 0;
        fine = fine && pw_send(pair[0], "x", 1, 0) == 1 && pw_epoll_wait(epoll, got, 4, 5000) == 1;
        fine = fine && pw_close(epoll) == 0 && pw_host_close(server) == 0 && pw_host_close(client) == 0;
        _exit(fine ? 0 : 1);
    }
    OK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(pw_send(pair[0], "x", 1, 0) == 1 && pw_epoll_wait(epoll, got, 4, 5000) == 1);
    OK(pw_close(pair[0]) == 0 && pw_close(pair[1]) == 0 && pw_close(epoll) == 0 && pw_close(plain) == 0);
}

static _Atomic int released;

/* Calls the library about the socket that is being closed, or used by the call that leads here. */
static void release(void *context, const void *data, size_t len)
{
    int kind;
    socklen_t size = sizeof kind;
    (void)data;
    (void)pw_getsockopt(*(int *)context, SOL_SOCKET, SO_TYPE, &kind, &size);
    released += len > 0;
}

/* Memory comes back once, whatever ends the connection. */
static void releases(void)
{
    static char memory[1 << 20];
    int pair[2];
    connected(pair, 9004);
    OK(pw_send_owned(pair[0], memory, 1000, 0, release, &pair[0]) == 1000);
    OK(pw_listen(pair[0], 4) == -1);
    OK(pw_fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0);
    int sends = 1;
    while (pw_send_owned(pair[0], memory, sizeof memory, 0, release, &pair[0]) > 0)
        sends++;
    OK(errno == EAGAIN && sends > 1);
    OK(pw_send_owned(pair[0], NULL, 5, 0, release, &pair[0]) == -1 && errno == EFAULT);
    struct linger now = {.l_onoff = 1};
    OK(pw_setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    int number = pair[0];
    OK(pw_close(number) == 0 && pw_close(pair[1]) == 0);
    for (int i = 0; i < 500 && released < sends; i++)
        usleep(10000);
    OK(released == sends);
}

/* Structures grow: a shorter one is filled as far as it goes. */
static void sizes(void)
{
    struct pw_ledger ledger = {.size = 2 * sizeof(size_t), .sent_frames = 77};
    OK(pw_ledger_get(client, &ledger) == 0 && ledger.sent_frames == 77 && ledger.size == 2 * sizeof(size_t));
    ledger.size = 0;
    OK(pw_ledger_get(client, &ledger) == -1 && errno == EINVAL && pw_ledger_get(client, NULL) == -1);
    char text[8];
    OK(pw_stats_text(client, text, sizeof text) > 8 && strlen(text) == 7 && pw_stats_text(client, NULL, 0) > 8);
    OK(pw_host_close(77) == -1 && errno == EBADF && pw_host_open(NULL) == -1 && errno == EFAULT);
}

int main(void)
{
    alarm(60);
    failed_open();
    puts("ok failed_open");
    numbers_of_a_set();
    puts("ok numbers_of_a_set");
    cut_file();
    puts("ok cut_file");
    child();
    puts("ok child");
    releases();
    puts("ok releases");
    sizes();
    puts("ok sizes");
    OK(pw_host_close(client) == 0 && pw_host_close(server) == 0);
    return 0;
}
