/* A failing disk: below the folder FAULTS_UNDER, the call FAULTS_CALL number FAULTS_FIRST of a process, and the
   FAULTS_TIMES - 1 after it, fail with the error FAULTS_ERRNO. Loaded with LD_PRELOAD, so that it reaches workers too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;

static int is_under(const char *path) {
    const char *folder = getenv("FAULTS_UNDER");
    char absolute[PATH_MAX * 2];
    if (!folder || !path) return 0;
    if (path[0] != '/') {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(absolute, sizeof absolute, "%s/%s", here, path);
        path = absolute;
    }
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int fails(const char *call, const char *path) {
    const char *chosen = getenv("FAULTS_CALL");
    if (!chosen || strcmp(chosen, call) || !is_under(path)) return 0;
    long number = atomic_fetch_add(&calls, 1), first = atol(getenv("FAULTS_FIRST"));
    if (number < first || number >= first + atol(getenv("FAULTS_TIMES"))) return 0;
    errno = atoi(getenv("FAULTS_ERRNO"));
    return 1;
}

static int fails_fd(const char *call, int fd) {
    const char *chosen = getenv("FAULTS_CALL");
    if (!chosen || strcmp(chosen, call)) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return path[0] == '/' && fails(call, path); /* no pipe or socket, whose names look like paths from here */
}

#define REAL(name, ...) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(__VA_ARGS__)

ssize_t write(int fd, const void *data, size_t size) { return fails_fd("write", fd) ? -1 : REAL(write, fd, data, size); }
int fsync(int fd) { return fails_fd("fsync", fd) ? -1 : REAL(fsync, fd); }
int rename(const char *old, const char *new) { return fails("rename", new) ? -1 : REAL(rename, old, new); }
int link(const char *old, const char *new) { return fails("link", new) ? -1 : REAL(link, old, new); }
int linkat(int a, const char *old, int b, const char *new, int flags) {
    return fails("link", new) ? -1 : REAL(linkat, a, old, b, new, flags);
}

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...) {                       \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        mode_t mode = va_arg(rest, mode_t);                            \
        va_end(rest);                                                  \
        return fails("open", path) ? -1 : REAL(name, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
int openat(int folder, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return fails("open", path) ? -1 : REAL(openat, folder, path, flags, mode);
}
