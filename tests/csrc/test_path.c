/* SPDX-License-Identifier: Apache-2.0 */
/* test_path.c -- following symlinks in a path's last component. */
#include "check.h"
#include "core/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int follow(const char *path, char *found)
{
    strcpy(found, path);
    return path_follow(found, PATH_MAX);
}

static void links_are_followed_and_folders_kept(void)
{
    char folder[] = "/tmp/test-path-XXXXXX";
    char found[PATH_MAX];

    CHECK("a folder", mkdtemp(folder) && chdir(folder) == 0);
    close(open("file", O_CREAT | O_WRONLY, 0600));
    CHECK("links", mkdir("inner", 0700) == 0 && symlink("inner", "folder-link") == 0 &&
                       symlink("../file", "inner/back") == 0 &&
                       symlink("back", "inner/twice") == 0 && symlink("circle", "circle") == 0 &&
                       symlink("nowhere", "broken") == 0);

    CHECK("no link: as it is", follow("file", found) == 0 && strcmp(found, "file") == 0);
    CHECK("a folder that is a link stays",
          follow("folder-link/twice", found) == 0 && strcmp(found, "folder-link/../file") == 0);
    CHECK("and the kernel agrees", access(found, F_OK) == 0);
    CHECK_EQUAL("a circle ends", follow("circle", found), -ELOOP);
    CHECK_EQUAL("a broken link says so", follow("broken", found), -ENOENT);
    strcpy(found, "inner/twice");
    CHECK_EQUAL("what does not fit is said", path_follow(found, strlen(found) - 1), -ENAMETOOLONG);

    unlink("inner/twice"), unlink("inner/back"), rmdir("inner");
    unlink("file"), unlink("folder-link"), unlink("circle"), unlink("broken");
    CHECK("cleaned up", rmdir(folder) == 0);
}

int main(void)
{
    links_are_followed_and_folders_kept();
    return check_end();
}
